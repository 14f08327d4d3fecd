"""Starts and kills a supervisor's process, so that nothing of it outlives the supervisor."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.supervise import procfs

_LIBC = ctypes.CDLL(None)
_EVENT = "IMPALA_MM_EVENT"  # the variable of the commands of --on_event (`records.outputs`)
_REAP_SECONDS = 2.0  # seconds that killed processes have to vanish


def adopt_orphans() -> None:
    """Make this process the parent of all orphans that its descendants leave from now on."""
    _LIBC.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def start(
    command: Sequence[str], environment: Mapping[str, str], workdir: str, death_signal: int
) -> subprocess.Popen:
    """Start a command; its output comes through `stdout`. Raises OSError.

    `death_signal`: what the kernel sends it when this process ends.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=workdir,
        # The frontend may itself have been started by such a command.
        env={name: value for name, value in environment.items() if name != _EVENT},
        start_new_session=True,  # the supervisor handles Ctrl-C in the terminal
        preexec_fn=_signal_on_parent_death(death_signal),  # noqa: PLW1509 - there is no other thread
    )


def kill_tree(process: subprocess.Popen) -> None:
    """Kill a process and all its descendants."""
    for pid in [process.pid, *procfs.descendants(process.pid)]:
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            os.kill(pid, signal.SIGKILL)


def kill_group(process: subprocess.Popen) -> None:
    """Kill a process, its descendants and what these have left behind in its process group."""
    kill_tree(process)
    with contextlib.suppress(OSError):  # none is left in it
        os.killpg(process.pid, signal.SIGKILL)


def kill_orphans() -> None:
    """Kill what a process has left behind; called once the process itself has ended.

    The commands of --on_event continue: they may save what was written last.
    """
    until = time.monotonic() + _REAP_SECONDS
    # Again and again: a process may start another one while the others are being killed.
    # What such a command has just started may not have its environment yet: all of it is left out.
    while (pids := procfs.descendants(os.getpid(), but=_EVENT)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # no child is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def exit_code(process: subprocess.Popen) -> int:
    """Return the exit code in the format of shells: 128 + N after signal N."""
    code = process.returncode
    return code if code >= 0 else 128 - code


def describe_exit(code: int) -> str:
    """Return an exit code in words, without a subject: "exited with code 1"."""
    if code > 128:
        with contextlib.suppress(ValueError):  # there is no such signal
            return f"was killed by {signal.Signals(code - 128).name}"
    return f"exited with code {code}"


def _signal_on_parent_death(number: int) -> Any:
    """Return a function that makes the kernel signal this process when its supervisor ends."""
    supervisor = os.getpid()

    def request_signal() -> None:
        _LIBC.prctl(1, number)  # PR_SET_PDEATHSIG
        if os.getppid() != supervisor:  # it ended before the request
            os._exit(1)

    return request_signal
