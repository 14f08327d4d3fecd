"""The number of idle cores on this host, among those that this process may use."""

import os
from pathlib import Path


class IdleCores:
    """A measurement of idle cores between two calls, whichever programs use the others."""

    def __init__(self, proc: Path = Path("/proc")):
        self._stat = proc / "stat"
        self._before = self._ticks()

    def idle(self) -> float | None:
        """Return the mean number of idle cores since the last call, or None if it is not known."""
        before, self._before = self._before, self._ticks()
        after = self._before
        passed = sum(after) - sum(before)
        if not before or not after or passed <= 0:
            return None
        ours = len(os.sched_getaffinity(0))
        return ours * min(max((after[1] - before[1]) / passed, 0.0), 1.0)

    def _ticks(self) -> tuple[int, ...]:
        """Return (busy, idle) clock ticks since the start of the machine; () if not known."""
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return ()
        ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        fields = [line.split() for line in lines]
        # user (includes guests), nice, system, idle, waiting for disks, two interrupts, stolen
        times = [list(map(int, each[1:9])) for each in fields if each and each[0] in ours]
        idle = sum(t[3] + t[4] for t in times)
        return sum(map(sum, times)) - idle, idle
