"""Finds out that no actor of a run is left; both programs that follow a run ask for it."""

import time
from collections.abc import Iterable

_SECONDS = 5.0  # seconds after the last failure: a learner that knows why ends by itself


class ActorWatch:
    """A watch over the actors of one run."""

    def __init__(self) -> None:
        self._all_failed_at: float | None = None  # time.monotonic()

    def have_all_failed(self, states: Iterable[str]) -> bool:
        """Return whether all actors, in these states, failed for good some seconds ago.

        Those that `--apply` has removed are "stopped" and do not count.
        """
        if set(states) - {"stopped", "ended"} != {"failed"}:
            self._all_failed_at = None
            return False
        self._all_failed_at = self._all_failed_at or time.monotonic()
        return time.monotonic() - self._all_failed_at > _SECONDS
