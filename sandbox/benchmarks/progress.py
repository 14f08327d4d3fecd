"""Progress lines of benchmarks, with the estimated time left."""

import sys
import time
from collections.abc import Callable

from impala_mm.runtime.timing import format_duration

ShowProgress = Callable[[str], None]  # called with a description of the current measurement
_LINE_INTERVAL = 15.0  # seconds between two lines if the output is not a terminal


def print_progress(text: str) -> None:
    """Print an indented line to stderr, so that stdout has only the result."""
    print(f"  {text}", file=sys.stderr, flush=True)


def time_left(began: float, done: float, left: float) -> str:
    """Estimate the time left, from guesses at the seconds of what is done and of what is left.

    `began`: time.monotonic() at the start, which tells how accurate they were.
    """
    factor = (time.monotonic() - began) / done if done else 1.0
    return f"about {format_duration(left * factor)} left"


class RunProgress:
    """A printer of one line per run, with the time left."""

    def __init__(self, count: int, seconds: float):
        """Expect `count` runs; `seconds` is the guess for one run until the first has ended."""
        self._count, self._done = count, 0
        self._guess, self._began = seconds, time.monotonic()

    def time_left(self) -> str:
        """Estimate the time left for all remaining runs."""
        done, left = self._done * self._guess, (self._count - self._done) * self._guess
        return time_left(self._began, done, left)

    def __call__(self, text: str) -> None:
        """Count one more run, and print a line about it."""
        self._done += 1
        print(f"[{self._done}/{self._count}] {text}; {self.time_left()}", flush=True)


class StatusLine:
    """The current activity: a line that a terminal rewrites, elsewhere a new line now and then."""

    def __init__(self, label: str):
        """Begin every line with `label`."""
        self._label, self._next = label, 0.0

    def __call__(self, text: str) -> None:
        """Show a text; without a terminal only at intervals."""
        if sys.stdout.isatty():
            print(f"\r\033[K{self._label}: {text}", end="", flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_INTERVAL
            print(f"{self._label}: {text}", flush=True)

    def clear(self) -> None:
        """Clear the terminal's line before other output."""
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)
