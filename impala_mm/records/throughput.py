"""The throughput of a run, measured from the end of one update to the end of another.

`MetricsAggregator` asks for it with each row. An update may take longer than the time between two
rows: counted over the time between rows, the rate would then be 0 in one row and too high in the
next one.
"""

import time
from typing import NamedTuple

# Mean times between updates without a new one, after which a run is at a standstill.
_LATE = 3.0


class Progress(NamedTuple):
    """The frames, steps and updates of a run so far."""

    frames: float
    steps: float
    updates: int
    at: float  # time.monotonic() when its last update ended


class Throughput:
    """The frames, steps and updates per second of a run."""

    def __init__(self, begin: Progress):
        """Count from `begin`, whose `at` is now."""
        self._counted = begin
        self._update_seconds = 0.0  # mean time between the last updates that were counted
        self._rates = dict.fromkeys(("frames", "steps", "updates"), 0.0)
        self.is_between_updates = False  # no update has ended since the last one counted, but will
        self.has_updated = False  # an update was counted

    def count(self, progress: Progress) -> dict[str, float]:
        """Return the rates by their metrics' names.

        They are those up to the last update. Between two updates they stay as they are, and they
        are 0 while the next one takes `_LATE` times as long as those before.
        """
        last = self._counted
        if progress[:3] != last[:3]:
            seconds = max(progress.at - last.at, 1e-9)
            done = {name: getattr(progress, name) - getattr(last, name) for name in self._rates}
            self._rates = {name: number / seconds for name, number in done.items()}
            self._update_seconds = seconds / max(done["updates"], 1)
            self._counted, self.has_updated, self.is_between_updates = progress, True, False
        else:
            late = time.monotonic() - last.at > _LATE * self._update_seconds
            self.is_between_updates = self.has_updated and not late
            if late:
                self._rates = dict.fromkeys(self._rates, 0.0)
        return {f"{name}_per_second": rate for name, rate in self._rates.items()}
