"""A sign of life, for a supervisor outside this package that asks for one.

It names a file in the environment variable IMPALA_MM_HEARTBEAT. While the process does its work, or
has good reason to wait, that file is written at most once a second: `{"frames": N}`, environment
frames so far, and the time of its last change is the beat. A thread of its own would beat for a
process that hangs, so those who work call `beat`: an actor where it steps its environments, a
learner in `monitor`, an evaluator between the steps of its games. The first beat comes once
TensorFlow is loaded. Without the variable nothing is written.
"""

import contextlib
import json
import math
import os
import time
from pathlib import Path

from impala_mm.runtime.rank import process_rank

VARIABLE = "IMPALA_MM_HEARTBEAT"
_SECONDS = 1.0  # at least, between two beats


class Heartbeat:
    """Of one process."""

    def __init__(self, path: str = ""):
        """`path`: the file that is written; empty: none."""
        self._path, self._last = path, -math.inf
        self.frames = 0.0  # so far, as the next beat says

    def beat(self) -> None:
        """Called as often as one likes; a disk that takes nothing costs the beat, no more."""
        now = time.monotonic()
        if not self._path or now - self._last < _SECONDS:
            return
        self._last = now
        work = Path(f"{self._path}.part")
        with contextlib.suppress(OSError):
            work.write_text(json.dumps({"frames": int(self.frames)}) + "\n")
            work.replace(self._path)  # who reads never sees half of it


def of_this_process() -> Heartbeat:
    """An actor's, or an evaluator's."""
    return Heartbeat(os.environ.get(VARIABLE, ""))


def of_learner() -> Heartbeat:
    """One of several has a file of its own, which ends in its rank."""
    path, here = os.environ.get(VARIABLE, ""), process_rank()
    return Heartbeat(f"{path}-{here.rank}" if path and here.size > 1 else path)
