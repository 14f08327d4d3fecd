"""The progress of a long operation: one line that a terminal rewrites, or a line now and then."""

import sys
import time
from collections.abc import Callable

from launcher.supervise.callbacks import Say

_TERMINAL_SECONDS = 0.3  # seconds between two updates of the line on a terminal
_LINE_SECONDS = 5.0  # seconds between two lines without a terminal


class ProgressLine:
    """A progress line; an operation that takes only a moment prints none."""

    def __init__(self, say: Say):
        """Start the clock; `say` prints the lines if there is no terminal."""
        self._say, self._is_terminal = say, sys.stdout.isatty()
        self._pause = _TERMINAL_SECONDS if self._is_terminal else _LINE_SECONDS
        self._started = self._last_shown = time.monotonic()

    def update(self, describe: Callable[[float], str]) -> None:
        """Print the line if an update is due; `describe` gets the seconds since the start."""
        now = time.monotonic()
        if now - self._last_shown < self._pause:
            return
        self._last_shown = now
        line = describe(now - self._started)
        if self._is_terminal:
            print(f"\r{line}\033[K", end="", flush=True)
        else:
            self._say(line)

    def clear(self) -> None:
        """Clear the line on a terminal, before something else is printed."""
        if self._is_terminal and self._last_shown != self._started:
            print("\r\033[K", end="", flush=True)
