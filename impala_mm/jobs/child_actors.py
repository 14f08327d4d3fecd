"""Actors as child processes, on this machine: none outlives its parent, `kill -9` included."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from impala_mm.runtime import heartbeat, log
from impala_mm.runtime.log import Say

_PARENT = "IMPALA_MM_PARENT"  # in the environment of a child: the process it must not outlive
_LONG_LIFE_SECONDS = 600.0  # seconds: who lived so long has not died again and again


class ChildActors:
    """The actors that a learner of this machine starts: restarted when they die, ended with it."""

    def __init__(self, argv: list[str], count: int, logdir: Path, log_max_mb: float):
        self._argv, self._logdir, self._log_max = argv, logdir, log_max_mb * 2**20
        self.count = count  # of all that there are to be
        self._processes: dict[int, subprocess.Popen] = {}
        self._deaths: dict[int, int] = dict.fromkeys(range(count), 0)  # one soon after the other
        self._born: dict[int, float] = {}
        self._again: dict[int, float] = dict.fromkeys(range(count), 0.0)
        self.watch(lambda message: None)

    def watch(self, say: Say) -> None:
        """Starts those that are due; called from the main thread, which they die with."""
        for task, process in list(self._processes.items()):
            log.rotate_if_long(self._log(task), self._log_max)
            if process.poll() is not None:
                del self._processes[task]
                lived = time.monotonic() - self._born[task]
                self._deaths[task] = 1 if lived > _LONG_LIFE_SECONDS else self._deaths[task] + 1
                if self._deaths[task] >= 20:
                    say(f"actor {task} has died 20 times, and stays away: see {self._log(task)}")
                    continue
                delay = min(0.5 * 2 ** min(self._deaths[task], 6), 30.0)
                self._again[task] = time.monotonic() + delay
                say(
                    f"actor {task} ended with code {process.returncode}; it starts again in "
                    f"{delay:.0f} s ({self._last_line(task)})"
                )
        for task, when in list(self._again.items()):
            if time.monotonic() >= when:
                del self._again[task]
                self._processes[task], self._born[task] = self._start(task), time.monotonic()

    def end(self) -> None:
        """Ends all of them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, task: int) -> subprocess.Popen:
        command = [sys.executable, *self._argv, "--job_name=actor", f"--task={task}"]
        environment = os.environ | {_PARENT: str(os.getpid())}
        environment.pop(heartbeat.VARIABLE, "")  # that file is its parent's
        with self._log(task).open("ab") as file:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,  # Ctrl-C is the learner's to act on
            )

    def _log(self, task: int) -> Path:
        return self._logdir / f"actor-{task}.log"

    def _last_line(self, task: int) -> str:
        lines = self._log(task).read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def die_with_parent() -> bool:
    """Of a child of `ChildActors`: the kernel kills it when its learner ends, however that happens.

    Whether this process is one.
    """
    parent = int(os.environ.get(_PARENT, "0"))
    if not parent:
        return False
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
    return True
