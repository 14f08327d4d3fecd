"""The heartbeat of a process, for a supervisor outside this package.

The supervisor sets the environment variable IMPALA_MM_HEARTBEAT to the path of a file. While the
process works, or waits for a good reason, it writes that file at most once a second:
`{"frames": N}`, the environment frames so far. The time of the file's last change is the heartbeat.
A separate thread would write it even if the process hangs, so the code that works calls `beat`: an
actor where it steps its environments, a learner in `monitor`, an evaluator between the steps of its
games; only what shows no progress, such as writing a file, has heartbeats beside it for a while.
The first heartbeat comes after TensorFlow is loaded. No file is written if the variable is not set.

A process that ends because it can never work (`give_up`) writes `{"frames": 0, "gave_up": WHY}`
before it exits: its supervisor does not restart it if it has never worked before either. One that
crashes before it has worked writes `{"frames": 0, "crash": WHAT}`. Its supervisor sets the
environment variable IMPALA_MM_LAST_CRASH to that for the next start, which may give up.

A supervisor also learns where the learners listen: the first learner writes `{"learner_hosts":
[address, ...]}`, in the order of ranks, to the path in IMPALA_MM_LEARNER_HOSTS, as soon as the
addresses of all learners are known; usually before it loads TensorFlow. When all learners are done
and the run is saved, it adds `"ended": true`: mpirun's exit code is 0 also if it lost learners.
"""

import concurrent.futures
import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from impala_mm.config import flags
from impala_mm.runtime.starter import process_rank

VARIABLE = "IMPALA_MM_HEARTBEAT"
HOSTS_VARIABLE = "IMPALA_MM_LEARNER_HOSTS"
CRASH_VARIABLE = "IMPALA_MM_LAST_CRASH"
_SECONDS = 1.0  # least time between two heartbeats
_MOST_WAIT_SECONDS = 1800.0  # for work whose end cannot be seen to come nearer, see `beat_during`

_Result = TypeVar("_Result")


class Heartbeat:
    """The heartbeat file of one process; with an empty `path` no file is written."""

    def __init__(self, path: str = ""):
        self._path = path
        self.last = -math.inf  # time.monotonic() of the last heartbeat
        self.frames = 0.0  # environment frames so far, which the next heartbeat reports

    def beat(self) -> None:
        """Write the file, unless it was written within the last second; ignore disk errors."""
        now = time.monotonic()
        if now - self.last >= _SECONDS:
            self.last = now
            self._write({"frames": int(self.frames)})

    def beat_during(
        self, work: Callable[[], _Result], seconds: float = _MOST_WAIT_SECONDS
    ) -> _Result:
        """Return what `work` returns; another thread does it, and this one sends heartbeats.

        It is for what may take long and shows no progress, such as writing a large file: after
        these seconds the heartbeats end, since a disk or a network may never answer.
        """
        until = time.monotonic() + seconds
        with concurrent.futures.ThreadPoolExecutor(1, "work") as thread:
            result = thread.submit(work)
            while not concurrent.futures.wait([result], _SECONDS).done:
                if time.monotonic() < until:
                    self.beat()
            return result.result()

    def give_up(self, why: str) -> None:
        """Report that this process ends and that a restart would not help."""
        self._write({"frames": 0, "gave_up": why})

    def repeats_crash(self, crash: str) -> bool:
        """Report a crash before any work was done; return whether the last start had the same."""
        self._write({"frames": 0, "crash": crash})
        return os.environ.get(CRASH_VARIABLE) == crash

    def _write(self, content: dict[str, Any]) -> None:
        if not self._path:
            return
        with contextlib.suppress(OSError):
            _write(self._path, content)


def of_this_process() -> Heartbeat:
    """Return the heartbeat of an actor or an evaluator."""
    return Heartbeat(os.environ.get(VARIABLE, ""))


def of_learner() -> Heartbeat:
    """Return a learner's heartbeat; one of several learners adds its rank to the file's name."""
    path, here = os.environ.get(VARIABLE, ""), process_rank()
    return Heartbeat(f"{path}-{here.rank}" if path and here.size > 1 else path)


def report_learner_hosts(addresses: Sequence[str]) -> None:
    """Report the addresses of all learners to the supervisor, if there is one and they are known.

    Exit with code 2 if that is impossible, since the supervisor may wait for it.
    """
    path = os.environ.get(HOSTS_VARIABLE, "")
    if not path or not addresses:
        return
    try:
        _write(path, {"learner_hosts": list(addresses)})
    except OSError as error:
        flags.refuse(f"{HOSTS_VARIABLE}={path}: {error.strerror}")


def report_end(addresses: Sequence[str]) -> None:
    """Report to the supervisor, if there is one, that the learners at these addresses are done."""
    if path := os.environ.get(HOSTS_VARIABLE, ""):
        with contextlib.suppress(OSError):
            _write(path, {"learner_hosts": list(addresses), "ended": True})


def _write(path: str, content: dict[str, Any]) -> None:
    """Write a JSON file; readers never see half of it. Raises OSError."""
    work = Path(f"{path}.part")
    work.write_text(json.dumps(content) + "\n")
    work.replace(path)
