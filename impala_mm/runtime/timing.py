"""Times: in words, at regular intervals, and longer pauses between attempts."""

import math
import threading
import time

from impala_mm.runtime.log import Say


def format_duration(seconds: float) -> str:
    """Return a time in the unit in which it reads best: 73 s, 22 min, 1.6 h."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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


class Backoff:
    """A wait for one event, which is logged every 10 s.

    `what`: the event in words, as in "for the learner at HOST". `ending`: ends a pause when it is
    set. `silent`: seconds before the first log line.
    """

    def __init__(self, what: str, say: Say, ending: threading.Event, silent: float = 0.0):
        self._what, self._say, self._ending = what, say, ending
        self._since = time.monotonic()
        self._next = silent  # seconds from the start to the next log line
        self._times = 0  # pauses so far
        self._why = ""  # the reason in the last log line

    def pause(self, first: float, most: float, why: str = "") -> None:
        """Wait for `first` seconds, and 1.5 times as long at each further call, up to `most`.

        `why` is logged with the wait, and at once if it is new.
        """
        waited = time.monotonic() - self._since
        if waited >= self._next or why not in {"", self._why}:
            self._next, self._why = waited + 10, why
            reason = f": {why}" if why else ""
            self._say(f"waiting {self._what} ({waited:.0f} s so far){reason}")
        self._ending.wait(min(first * 1.5**self._times, most))
        self._times = min(self._times + 1, 20)
