"""The time until a run reaches its limit, for the progress line."""

import math
from collections import deque
from typing import Any

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
