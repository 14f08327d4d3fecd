"""Ends a process whose learners are on another host, where their end cannot be seen.

The process keeps running while it makes progress, or while a frontend is connected to this host.
Actors whose learner is gone make no progress, so without a frontend their lease expires.
"""

import contextlib
import time
from pathlib import Path
from typing import Any


class Lease:
    """The lease of one process: it expires without progress and without a frontend."""

    def __init__(self, news: Path, seconds: float):
        """Begin a lease; connected frontends touch the file `news`. 0 seconds: it never expires."""
        self._news, self._seconds = news, seconds
        self._last_seen: tuple[Any, float | None] = (None, None)
        self._renewed = time.monotonic()

    def has_expired(self, frames: float | None) -> bool:
        """Return whether the lease has expired; `frames`: environment frames so far.

        Only our own monotonic clock counts.
        """
        if not self._seconds:
            return False
        touched = None
        with contextlib.suppress(OSError):  # no frontend has been connected yet
            touched = self._news.stat().st_mtime_ns
        if (touched, frames) != self._last_seen:
            self._last_seen, self._renewed = (touched, frames), time.monotonic()
        return time.monotonic() - self._renewed > self._seconds
