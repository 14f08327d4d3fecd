"""A trace of some updates for TensorBoard's profiler: --profile=START:STOP."""

import contextlib
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.runtime.log import Say


class UpdateProfiler:
    """Of updates START to STOP - 1 of this process, the first being 0; empty text: of none."""

    def __init__(self, text: str, logdir: Path, say: Say):
        self._begin, self._end = map(int, text.split(":")) if text else (0, 0)
        self._logdir, self._say = logdir, say
        self._number = 0
        self._running = False

    def update(self) -> contextlib.AbstractContextManager[Any]:
        """Around one update."""
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
        """Writes what was traced so far, if anything."""
        if self._running:
            self._running = False
            last = min(self._number, self._end) - 1
            tf.profiler.experimental.stop()
            self._say(
                f"traced updates {self._begin} to {last}: {self._logdir}/plugins/"
                f"profile (`pip install tensorboard-plugin-profile` to look at it in TensorBoard)"
            )
