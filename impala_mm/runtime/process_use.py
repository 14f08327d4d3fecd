"""The cores and memory that this process and its descendants use, from /proc."""

import contextlib
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
        self._ticks, self._measured = self._read()[0], time.monotonic()
        self._newest = Use()

    def newest(self) -> Use:
        """Return the newest measurement; measure again if it is too old."""
        seconds = time.monotonic() - self._measured
        if seconds >= _SECONDS:
            ticks, memory = self._read()
            used = sum(new - self._ticks.get(pid, 0) for pid, new in ticks.items())
            self._newest = Use(used / os.sysconf("SC_CLK_TCK") / seconds, memory)
            self._ticks, self._measured = ticks, self._measured + seconds
        return self._newest

    def _read(self) -> tuple[dict[int, int], float]:
        """Return the CPU time of each process in ticks, and the memory of all."""
        ticks, pages = {}, 0
        for pid in _with_descendants(os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks[pid] = int(fields[11]) + int(fields[12])
                pages += int(fields[21])
        return ticks, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += _with_descendants(child)
    return found
