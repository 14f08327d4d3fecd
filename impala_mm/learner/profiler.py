"""Traces of some updates for TensorBoard's profiler: --profile=START:STOP."""

import contextlib
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.runtime.log import Say


class UpdateProfiler:
    """A profiler of this process's updates START to STOP - 1, counted from 0."""

    def __init__(self, text: str, logdir: Path, say: Say):
        """Trace the updates that `text`, START:STOP, names; none if it is empty."""
        self._begin, self._end = map(int, text.split(":")) if text else (0, 0)
        self._logdir, self._say = logdir, say
        self._number = 0
        self._running = False

    def update(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the next update, which traces it if it is one of these."""
        number, self._number = self._number, self._number + 1
        if number == self._begin < self._end:
            tf.profiler.experimental.start(str(self._logdir))
            self._running = True
        if number == self._end:
            self.stop()
        if not self._running:
            return contextlib.nullcontext()
        return tf.profiler.experimental.Trace("update", step_num=number, _r=1)

    def stop(self) -> None:
        """End the trace, if one is running, and write it."""
        if self._running:
            self._running = False
            last = min(self._number, self._end) - 1
            tf.profiler.experimental.stop()
            self._say(
                f"traced updates {self._begin} to {last}: {self._logdir}/plugins/profile "
                f"(TensorBoard shows it after `pip install tensorboard-plugin-profile`)"
            )
