"""The cores and memory that this process and its descendants use, from /proc."""

import contextlib
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

_SECONDS = 2.0  # between two measurements: each reads a file for every thread of the process


class Use(NamedTuple):
    """The use of processes."""

    cores: float = 0.0
    memory: float = 0.0  # resident, in MiB

    def in_header(self) -> dict[str, int]:
        """Return the fields of an actor's message that hold it."""
        return {"millicores": round(1000 * self.cores), "memory": round(self.memory)}


class ProcessUse:
    """The use of this process since the last measurement, some seconds ago."""

    def __init__(self) -> None:
        self._ticks, self._measured = dict[tuple[int, int], int](), -math.inf
        self._newest = Use()

    def newest(self) -> Use:
        """Return the newest measurement; measure again if it is too old."""
        seconds = time.monotonic() - self._measured
        if seconds >= _SECONDS:
            with contextlib.suppress(OSError):  # no file can be opened: the last one remains
                self._measure(seconds)
        return self._newest

    def _measure(self, seconds: float) -> None:
        ticks, pages = {}, 0
        for pid in _with_descendants(os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks[pid, int(fields[19])] = int(fields[11]) + int(fields[12])
                pages += int(fields[21])
        # Of a process that was not there the last time, the CPU time since then is not known.
        used = sum(new - self._ticks.get(process, new) for process, new in ticks.items())
        cores = used / os.sysconf("SC_CLK_TCK") / seconds
        self._newest = Use(cores, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        self._ticks, self._measured = ticks, time.monotonic()


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += _with_descendants(child)
    return found
