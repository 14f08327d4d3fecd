"""Facts about processes from /proc: identity, descendants, use of CPU and memory."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from launcher.supervise.json_files import fits

Process = tuple[int, int]  # pid and start time, by which a process is known after its end, too


def start_time(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks; 0 if there is no such process.

    A recorded pid may belong to another process by now; the start time tells them apart.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    # One whose first thread has ended may hold files and locks as long as it has other threads.
    has_ended = fields[0] == "Z" and int(fields[17]) <= 1
    return 0 if has_ended else int(fields[19])


def identify(pid: int) -> Process:
    """Return a process of now as it is recorded."""
    return pid, start_time(pid)


def is_alive(process: Any) -> bool:
    """Return whether a recorded process is still running; it may be damaged, or None."""
    return fits(process, Process) and start_time(process[0]) == process[1] != 0


def descendants(pid: int, but: str = "") -> list[int]:
    """Return the pids of a process's children, their children, and so on.

    `but`: an environment variable; processes that have it are left out, and all that they started.
    """
    pids = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process has just ended
            for child in map(int, path.read_text().split()):
                if not (but and has_variable(child, but)):
                    pids += [child, *descendants(child, but)]
    return pids


def has_variable(pid: int, name: str) -> bool:
    """Return whether a process has this environment variable, as far as it may be known."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"\0{name}=".encode() in b"\0" + content


class Usage:
    """The CPU time and memory that all descendants of this process use."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._measured = time.monotonic()

    def measure(self) -> tuple[float, float]:
        """Return (CPU in percent of a core since the last call, resident memory in MiB)."""
        ticks, memory = {}, 0
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):  # it has just ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks[pid] = int(fields[11]) + int(fields[12])
                memory += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        used = sum(new - self._ticks.get(pid, 0) for pid, new in ticks.items())
        now = time.monotonic()
        share = used / os.sysconf("SC_CLK_TCK") / max(now - self._measured, 1e-3)
        self._ticks, self._measured = ticks, now
        return 100 * share, memory / 2**20
