"""How busy the cores are that this process may use, with whatever programs."""

import os
from pathlib import Path


class Cores:
    """From one question to the next."""

    def __init__(self, proc: Path = Path("/proc")):
        self._stat = proc / "stat"
        self._before = self._ticks()

    def busy(self) -> dict[str, float]:
        """`cores_busy`, 0 to 1, since it was last asked; nothing where the kernel does not say."""
        (busy, every), self._before = self._before, self._ticks()
        passed = self._before[1] - every
        return {"cores_busy": (self._before[0] - busy) / passed} if passed > 0 else {}

    def _ticks(self) -> tuple[int, int]:
        """So far: of work, and altogether."""
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return 0, 0
        ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        fields = [line.split() for line in lines]
        # User (guests are in it), nice, system, idle, waiting for disks, two interrupts, stolen.
        times = [list(map(int, each[1:9])) for each in fields if each and each[0] in ours]
        return sum(sum(t) - t[3] - t[4] for t in times), sum(map(sum, times))
