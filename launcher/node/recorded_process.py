"""The end of a process that is known by its [pid, start time], and may be no child of this one."""

import contextlib
import os
import signal
import time
from typing import Any

from launcher.node import procfs

_KILL_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL


def wait_for_end(process: Any, seconds: float) -> bool:
    """Wait until a process has ended, for at most `seconds`; return whether it has."""
    until = time.monotonic() + seconds
    while procfs.is_alive(process):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def kill(process: Any) -> bool:
    """End a process by SIGKILL; return whether it has ended."""
    return _signal(process, signal.SIGKILL)


def end(process: Any) -> None:
    """End a process by SIGTERM, and by SIGKILL if that is not enough."""
    if not _signal(process, signal.SIGTERM):
        kill(process)


def _signal(process: Any, number: int) -> bool:
    if procfs.is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process[0], number)
    return wait_for_end(process, _KILL_SECONDS)
