"""A timer for what is done at regular intervals, such as lines of progress."""

import math
import time


class Interval:
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
