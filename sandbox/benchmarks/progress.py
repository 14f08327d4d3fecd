"""What a benchmark does now and how long it will take still, for who waits for it."""

import sys
import time
from collections.abc import Hashable, Mapping

_PLAIN = 15.0  # seconds between two lines where nobody sits at a terminal


def in_words(seconds: float) -> str:
    """As one says how much is left."""
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"


class Progress:
    """A line for each run, with the time that is left."""

    def __init__(self, count: int, seconds: float):
        """So many runs, of so many seconds each: a guess until there was one."""
        self._count, self._done = count, 0
        self._guess, self._began = seconds, time.monotonic()

    def left(self) -> str:
        """As far as it can be told."""
        done, took = self._done, time.monotonic() - self._began
        return in_words((self._count - done) * (took / done if done else self._guess))

    def __call__(self, said: str) -> None:
        """One more is done."""
        self._done += 1
        print(f"[{self._done}/{self._count}] {said}; {self.left()}", flush=True)


class Ahead:
    """How long things that differ will take still: by a guess for each, and how guesses held."""

    def __init__(self, guesses: Mapping[Hashable, float]):
        """Seconds by name of what is ahead."""
        self._guesses, self._done = dict(guesses), 0.0
        self._began = time.monotonic()

    def left(self) -> str:
        """Of all that is neither done nor dropped."""
        took = time.monotonic() - self._began
        return in_words(sum(self._guesses.values()) * (took / self._done if self._done else 1.0))

    def done(self, name: Hashable, guess: float) -> None:
        """With its guess, since it need not have been foreseen."""
        self._guesses.pop(name, None)
        self._done += guess

    def drop(self, name: Hashable) -> None:
        """It was not necessary."""
        self._guesses.pop(name, None)


class Hint:
    """What is being done: one line that changes on a terminal, elsewhere a new one now and then."""

    def __init__(self, what: str):
        """`what` is in front of each."""
        self._what, self._next = what, 0.0

    def __call__(self, text: str) -> None:
        """Says it, unless it said something just now."""
        if sys.stdout.isatty():
            print(f"\r\033[K{self._what}: {text}", end="", flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN
            print(f"{self._what}: {text}", flush=True)

    def end(self) -> None:
        """Makes room for what is printed next."""
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)
