"""How many cores of this host, of those that this process may use, have nothing to do."""

import os
from pathlib import Path


class IdleCores:
    """From one question to the next; whatever programs use them."""

    def __init__(self, proc: Path = Path("/proc")):
        self._stat = proc / "stat"
        self._before = self._ticks()

    def idle(self) -> float | None:
        """Since it was last asked; None where the kernel does not say."""
        before, self._before = self._before, self._ticks()
        after = self._before
        passed = sum(after) - sum(before)
        if not before or not after or passed <= 0:
            return None
        ours = len(os.sched_getaffinity(0))
        return ours * min(max((after[1] - before[1]) / passed, 0.0), 1.0)

    def _ticks(self) -> tuple[int, ...]:
        """So far: of work, and of idleness; nothing where the kernel does not say."""
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return ()
        ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        fields = [line.split() for line in lines]
        # User (guests are in it), nice, system, idle, waiting for disks, two interrupts, stolen.
        times = [list(map(int, each[1:9])) for each in fields if each and each[0] in ours]
        idle = sum(t[3] + t[4] for t in times)
        return sum(map(sum, times)) - idle, idle
