"""How a process ends whose learners are on another host, where their end cannot be seen.

It goes on while it gets on, or while a frontend is connected to this host. A learner that is gone
leaves its actors waiting, so neither lasts.
"""

import contextlib
import time
from pathlib import Path
from typing import Any


class Lease:
    """The lease of one process."""

    def __init__(self, news: Path, seconds: float):
        """`news` is updated by whoever is connected; 0 seconds: the lease never ends."""
        self._news, self._seconds = news, seconds
        self._last_seen: tuple[Any, float | None] = (None, None)
        self._renewed = time.monotonic()

    def has_expired(self, frames: float | None) -> bool:
        """`frames`: that the process has made by now. Judged by our clock alone."""
        if not self._seconds:
            return False
        touched = None
        with contextlib.suppress(OSError):
            touched = self._news.stat().st_mtime_ns
        if (touched, frames) != self._last_seen:
            self._last_seen, self._renewed = (touched, frames), time.monotonic()
        return time.monotonic() - self._renewed > self._seconds
