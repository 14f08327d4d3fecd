"""A line that says how far something is: rewritten on a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable

from launcher.node.callbacks import Say

_TERMINAL_SECONDS = 0.3


class ProgressLine:
    """Nothing is said of what takes a moment only."""

    def __init__(self, say: Say, seconds: float):
        """`seconds` between two lines, where there is no terminal."""
        self._say, self._is_terminal = say, sys.stdout.isatty()
        self._pause = _TERMINAL_SECONDS if self._is_terminal else seconds
        self._started = self._last_shown = time.monotonic()

    def update(self, describe: Callable[[], str]) -> None:
        """If it is time again; with the seconds since the beginning."""
        now = time.monotonic()
        if now - self._last_shown < self._pause:
            return
        self._last_shown = now
        line = f"{describe()} ({now - self._started:.0f} s)"
        if self._is_terminal:
            print(f"\r{line}\033[K", end="", flush=True)
        else:
            self._say(line)

    def clear(self) -> None:
        """What comes next has a line of its own."""
        if self._is_terminal and self._last_shown != self._started:
            print("\r\033[K", end="", flush=True)
