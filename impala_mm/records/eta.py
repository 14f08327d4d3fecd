"""The time until a run reaches its limit, for the progress line."""

from collections import deque
from typing import Any

_ROWS = 10  # rows of metrics over which the rate is averaged
_FEWEST_ROWS = 6  # rows before which there is no estimate
_TOLERANCE = 0.2  # by how much the rates of the older and the newer half may differ


class EtaEstimator:
    """An estimate of the seconds until a run ends, made once its rate is stable.

    The run ends at its total frames or its maximum of seconds, whichever comes first. A mean return
    that ends it earlier cannot be foreseen.
    """

    def __init__(self, total_frames: float, max_seconds: float):
        """Take the run's limits; those of a resumed run include what it trained before."""
        self._total_frames, self._max_seconds = total_frames, max_seconds
        self._rates: deque[float] = deque(maxlen=_ROWS)  # frames per second, the newest last

    def update(self, row: dict[str, Any]) -> float | None:
        """Take the next row of metrics; return the seconds left, or None while rates vary."""
        self._rates.append(row["frames_per_second"])
        rate = self._stable_rate()
        if rate is None:
            return None
        by_frames = (self._total_frames - row["frames"]) / rate
        return max(min(by_frames, self._max_seconds - row["seconds"]), 0.0)

    def _stable_rate(self) -> float | None:
        """Return the mean rate if the last rows' older and newer half agree, else None."""
        count = len(self._rates)
        if count < _FEWEST_ROWS:
            return None
        mean, rates = sum(self._rates) / count, list(self._rates)
        older, newer = rates[: count // 2], rates[count // 2 :]
        apart = abs(sum(newer) / len(newer) - sum(older) / len(older))
        return mean if mean > 0 and apart <= _TOLERANCE * mean else None
