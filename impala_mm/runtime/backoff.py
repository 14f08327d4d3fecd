"""Waiting for something that others do: longer each time, and never silent for long."""

import threading
import time

from impala_mm.runtime.log import Say


class Backoff:
    """For one thing, named in words; it is said every 10 s."""

    def __init__(self, what: str, say: Say, ending: threading.Event, silent: float = 0.0):
        self._what, self._say, self._ending = what, say, ending
        self._since = time.monotonic()
        self._next, self._times = silent, 0  # seconds from the start

    def pause(self, first: float, most: float) -> None:
        """Waits `first` seconds, then half as long again each time, up to `most`."""
        waited = time.monotonic() - self._since
        if waited >= self._next:
            self._next = waited + 10
            self._say(f"waits {self._what} since {waited:.0f} s")
        self._ending.wait(min(first * 1.5**self._times, most))
        self._times = min(self._times + 1, 20)
