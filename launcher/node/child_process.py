"""A supervisor's process, started so that nothing of it outlives the supervisor."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import Any

from launcher.node import procfs
from launcher.node.task import Task

_LIBC = ctypes.CDLL(None)
_REAP_SECONDS = 2.0


def adopt_orphans() -> None:
    """From here on what its processes leave behind is the supervisor's own."""
    _LIBC.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def start(task: Task) -> subprocess.Popen:
    """Raises OSError. What it prints comes through its `stdout`."""
    return subprocess.Popen(
        task.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=task.workdir,
        env=task.environment | _terminal_variables(),
        start_new_session=True,  # Ctrl-C in the window is the supervisor's to act on
        preexec_fn=_signal_on_parent_death(task),  # noqa: PLW1509 - there is no other thread
    )


def kill_tree(process: subprocess.Popen) -> None:
    """And all that it started."""
    for pid in [process.pid, *procfs.descendants(process.pid)]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def kill_orphans() -> None:
    """Once the process itself has ended."""
    for pid in procfs.descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + _REAP_SECONDS
    while procfs.descendants(os.getpid()) and time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def exit_code(process: subprocess.Popen) -> int:
    """As shells have it."""
    code = process.returncode
    return code if code >= 0 else 128 - code


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(code - 128).name}"
    return f"it ended with exit code {code}"


def _signal_on_parent_death(task: Task) -> Any:
    """mpirun is asked to end, so that it takes its ranks along; others are ended."""
    number = signal.SIGTERM if task.rows else signal.SIGKILL
    return lambda: _LIBC.prctl(1, number)  # PR_SET_PDEATHSIG


def _terminal_variables() -> dict[str, str]:
    """Of the window, not of whoever started the run."""
    return {name: os.environ[name] for name in ("TERM", "TMUX", "TMUX_PANE") if name in os.environ}
