"""The throughput of a run, from the end of one update to that of another, and the time left.

`MetricsAggregator` asks for it with each row. An update may take longer than the time between two
rows: counted over the time between rows, the rate would then be 0 in one row and too high in the
next one.
"""

import math
import time
from collections import deque
from typing import Any, NamedTuple

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


_ROWS = 6  # rows of metrics over which the rate is averaged
# The largest difference between the mean rates of the older and the newer half of these rows, as a
# share of the mean, for a rate to become stable and to stay so. With one threshold the ETA would
# appear and disappear.
_BECOMES_STABLE, _STAYS_STABLE = 0.25, 0.5


class EtaEstimator:
    """An estimate of the seconds until a run ends, made once its rate is stable.

    The run ends at its total frames or its maximum of seconds, whichever comes first. A mean return
    that ends it earlier cannot be foreseen.
    """

    def __init__(self, total_frames: float, max_seconds: float):
        """Take the run's limits; those of a resumed run include what it trained before."""
        self._total_frames, self._max_seconds = total_frames, max_seconds
        self._rates: deque[float] = deque(maxlen=_ROWS)  # frames per second, the newest last
        self._stable = False

    def update(self, row: dict[str, Any], seconds: float) -> float | None:
        """Take the next row of metrics; return the seconds left, or None while rates vary.

        `seconds` are those that count towards the maximum.
        """
        by_seconds = max(self._max_seconds - seconds, 0.0)
        if not row["frames"] and row.get("updates_per_second"):  # no unroll counts as played
            return by_seconds if math.isfinite(by_seconds) else None
        self._rates.append(row["frames_per_second"])
        rate = sum(self._rates) / len(self._rates)
        self._stable = self._is_stable(rate)
        if not self._stable:
            return None
        by_frames = (self._total_frames - row["frames"]) / rate
        left = max(min(by_frames, by_seconds), 0.0)
        return left if math.isfinite(left) else None

    def _is_stable(self, mean: float) -> bool:
        """Return whether the last rows' rates, of this mean, are about the same."""
        if len(self._rates) < _ROWS or mean <= 0:
            return False
        rates, half = list(self._rates), _ROWS // 2
        change = abs(sum(rates[half:]) - sum(rates[:half])) / half
        return change <= mean * (_STAYS_STABLE if self._stable else _BECOMES_STABLE)
