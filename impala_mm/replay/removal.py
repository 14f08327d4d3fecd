"""Rules for what is removed from a full store: the oldest unroll, or the most distant of some.

A rule returns the slot of a `Store` that makes room for the next unroll.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from impala_mm.replay.store import Store


class Removal(Protocol):
    """A rule that chooses an unroll to remove."""

    def choose(self, store: Store) -> int:
        """Return the slot of the unroll to remove; the store is not empty."""


class Oldest:
    """The rule that removes the unroll which was stored first."""

    def choose(self, store: Store) -> int:
        """Return the slot of the oldest unroll."""
        return store.oldest()


class MostDistant:
    """The rule of elite insertion: of some unrolls, remove the one the policy has moved from most.

    `distance` returns float64 [N] for slots int64 [N].
    """

    def __init__(
        self,
        compared: int,
        distance: Callable[[np.ndarray], np.ndarray],
        random: np.random.Generator,
    ):
        self._compared, self._distance, self._random = compared, distance, random

    def choose(self, store: Store) -> int:
        """Return the slot of the most distant of `compared` unrolls, each drawn at most once."""
        number = min(self._compared, store.size)
        slots = self._random.choice(store.size, number, replace=False)
        return int(slots[np.argmax(self._distance(slots))])
