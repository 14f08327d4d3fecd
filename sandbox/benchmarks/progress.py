"""What a benchmark does now and how long it will take still, for who waits for it."""

import sys
import time
from collections.abc import Callable, Hashable, Mapping

ShowProgress = Callable[[str], None]  # is told what a measurement does now
_LINE_INTERVAL = 15.0  # seconds between two lines where nobody sits at a terminal


def format_time_left(seconds: float) -> str:
    """Says how much time is left."""
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"


class RunProgress:
    """A line for each run, with the time that is left."""

    def __init__(self, count: int, seconds: float):
        """So many runs, of so many seconds each: a guess until there was one."""
        self._count, self._done = count, 0
        self._guess, self._began = seconds, time.monotonic()

    def time_left(self) -> str:
        """Estimates the time that is left."""
        done, elapsed = self._done, time.monotonic() - self._began
        return format_time_left((self._count - done) * (elapsed / done if done else self._guess))

    def __call__(self, text: str) -> None:
        """Counts one more run, and prints a line about it."""
        self._done += 1
        print(f"[{self._done}/{self._count}] {text}; {self.time_left()}", flush=True)


class TimeEstimate:
    """How long things that differ will take still: by a guess for each, and how guesses held."""

    def __init__(self, guesses: Mapping[Hashable, float]):
        """Seconds by name of what is ahead."""
        self._guesses, self._done = dict(guesses), 0.0
        self._began = time.monotonic()

    def time_left(self) -> str:
        """Estimates the time of all that is neither complete nor skipped."""
        elapsed = time.monotonic() - self._began
        return format_time_left(
            sum(self._guesses.values()) * (elapsed / self._done if self._done else 1.0)
        )

    def complete(self, name: Hashable, guess: float) -> None:
        """Counts a thing as done, with its guess, since it need not have been foreseen."""
        self._guesses.pop(name, None)
        self._done += guess

    def skip(self, name: Hashable) -> None:
        """Drops a thing that was not necessary."""
        self._guesses.pop(name, None)


class StatusLine:
    """What is being done: one line that changes on a terminal, elsewhere a new one now and then."""

    def __init__(self, label: str):
        """`label` is in front of each."""
        self._label, self._next = label, 0.0

    def __call__(self, text: str) -> None:
        """Shows a text; without a terminal only one now and then."""
        if sys.stdout.isatty():
            print(f"\r\033[K{self._label}: {text}", end="", flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_INTERVAL
            print(f"{self._label}: {text}", flush=True)

    def clear(self) -> None:
        """Clears the line for what is printed next."""
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)
