"""A line that says how far something is: rewritten on a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable

_LIVE_SECONDS = 0.3


class Live:
    """Nothing is said of what takes a moment only."""

    def __init__(self, say: Callable[[str], None], seconds: float):
        """`seconds` between two lines, where there is no terminal."""
        self._say, self._is_live = say, sys.stdout.isatty()
        self._pause = _LIVE_SECONDS if self._is_live else seconds
        self._began = self._last = time.monotonic()

    def tell(self, how_far: Callable[[], str]) -> None:
        """If it is time again; with the seconds since the beginning."""
        now = time.monotonic()
        if now - self._last < self._pause:
            return
        self._last = now
        line = f"{how_far()} ({now - self._began:.0f} s)"
        if self._is_live:
            print(f"\r{line}\033[K", end="", flush=True)
        else:
            self._say(line)

    def end(self) -> None:
        """What comes next has a line of its own."""
        if self._is_live and self._last != self._began:
            print("\r\033[K", end="", flush=True)
