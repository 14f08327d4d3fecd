"""Deadlines of tests. They end what hangs and measure nothing, so a busy machine extends them."""

import contextlib
import os
import time
from collections.abc import Iterator

_MOST = 10.0


def load() -> float:
    """Return the processes that want to run, per core: at least 1, and at most `_MOST`."""
    return min(max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))), _MOST)


class Deadline:
    """A number of seconds, which last longer by the load of each core if that is above 1."""

    def __init__(self, seconds: float):
        """Begin now."""
        self.left, self._checked = seconds, time.monotonic()

    def is_over(self) -> bool:
        """Return whether no time is left; call it often, since the load changes."""
        now = time.monotonic()
        self.left -= (now - self._checked) / load()
        self._checked = now
        return self.left <= 0


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if what follows takes longer than this deadline."""
    deadline = Deadline(seconds)
    yield
    assert not deadline.is_over(), f"it took longer than {seconds} s"
