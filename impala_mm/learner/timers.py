"""Timers of rank 0's records: rows, progress lines, checkpoints, the report of a stall."""

import math
import time

from impala_mm.records.hooks import StallDetector

_ROW_SECONDS = 2.0  # seconds between rows of metrics
_HOSTS_SECONDS = 10.0  # seconds between rows of what hosts use
# Seconds between progress lines, the first of which is printed with the first update.
_LINE_SECONDS = 5.0
STALL_SECONDS = 60.0  # seconds without an update before a stall is reported


class _Interval:
    """A timer that is due at regular intervals."""

    def __init__(self, seconds: float):
        self._seconds, self._last = seconds, time.monotonic()

    def due(self, now: float) -> bool:
        """Return whether the interval has passed; if so, start the next one."""
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True

    def retry(self) -> None:
        """Make the timer due at once, because the work could not be done."""
        self._last = -math.inf


class Timers:
    """The timers of rank 0's records."""

    def __init__(self, save_seconds: float, updates: int):
        self.began, self.updates = time.monotonic(), updates
        self.first_line_due = True  # until the first update has been printed
        self.row, self.line = _Interval(_ROW_SECONDS), _Interval(_LINE_SECONDS)
        self.hosts, self.save = _Interval(_HOSTS_SECONDS), _Interval(save_seconds)
        self.stall = StallDetector(STALL_SECONDS)
