"""Timers of rank 0's records: rows, progress lines, checkpoints, the report of a stall."""

import time

from impala_mm.records.hooks import StallDetector
from impala_mm.runtime.interval import Interval

_ROW_SECONDS = 2.0  # seconds between rows of metrics
_HOSTS_SECONDS = 10.0  # seconds between rows of what hosts use
# Seconds between progress lines, the first of which is printed with the first update.
_LINE_SECONDS = 5.0
STALL_SECONDS = 60.0  # seconds without an update before a stall is reported


class Timers:
    """The timers of rank 0's records."""

    def __init__(self, save_seconds: float, updates: int):
        self.began, self.updates = time.monotonic(), updates
        self.first_line_due = True  # until the first update has been printed
        self.row, self.line = Interval(_ROW_SECONDS), Interval(_LINE_SECONDS)
        self.hosts, self.save = Interval(_HOSTS_SECONDS), Interval(save_seconds)
        self.stall = StallDetector(STALL_SECONDS)
