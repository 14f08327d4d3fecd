"""Progress lines of benchmarks, with the estimated time left."""

import sys
import time
from collections.abc import Callable, Hashable, Mapping

from impala_mm.runtime.timing import format_duration

ShowProgress = Callable[[str], None]  # called with a description of the current measurement
_LINE_INTERVAL = 15.0  # seconds between two lines if the output is not a terminal


def print_progress(text: str) -> None:
    """Print an indented line to stderr, so that stdout has only the result."""
    print(f"  {text}", file=sys.stderr, flush=True)


class RunProgress:
    """A printer of one line per run, with the time left."""

    def __init__(self, count: int, seconds: float):
        """Expect `count` runs; `seconds` is the guess for one run until the first has ended."""
        self._count, self._done = count, 0
        self._guess, self._began = seconds, time.monotonic()

    def time_left(self) -> str:
        """Estimate the time left for all remaining runs."""
        done, elapsed = self._done, time.monotonic() - self._began
        return _format_left((self._count - done) * (elapsed / done if done else self._guess))

    def __call__(self, text: str) -> None:
        """Count one more run, and print a line about it."""
        self._done += 1
        print(f"[{self._done}/{self._count}] {text}; {self.time_left()}", flush=True)


class TimeEstimate:
    """The time left for items of different lengths, from guesses and how accurate they were."""

    def __init__(self, guesses: Mapping[Hashable, float]):
        """Expect these items; `guesses` contains the seconds by name."""
        self._guesses, self._done = dict(guesses), 0.0
        self._began = time.monotonic()

    def time_left(self) -> str:
        """Estimate the time left for all items that are neither complete nor skipped."""
        elapsed = time.monotonic() - self._began
        return _format_left(
            sum(self._guesses.values()) * (elapsed / self._done if self._done else 1.0)
        )

    def complete(self, name: Hashable, guess: float) -> None:
        """Mark an item as complete; its guess is given because it may be a new item."""
        self._guesses.pop(name, None)
        self._done += guess

    def skip(self, name: Hashable) -> None:
        """Remove an item that was not needed."""
        self._guesses.pop(name, None)


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


def _format_left(seconds: float) -> str:
    return f"about {format_duration(seconds)} left"
