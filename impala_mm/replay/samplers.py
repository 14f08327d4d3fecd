"""Rules by which stored unrolls are drawn: at random, or by their priorities.

`elite` has the samplers that compare features. A sampler draws slots of its `Store`.
"""

from typing import NamedTuple, Protocol

import numpy as np

from impala_mm.replay.priority_tree import PriorityTree
from impala_mm.replay.store import Store

_LEAST = 1e-6  # priority of an unroll whose error is 0, so that it may be drawn again


class Draw(NamedTuple):
    """N unrolls that a sampler chose."""

    slots: np.ndarray  # int64 [N]
    weights: np.ndarray  # float32 [N]: by which their losses count
    measured: dict[str, float]  # metrics of this draw, by name


class Sampler(Protocol):
    """A rule by which the unrolls of a store are drawn."""

    def draw(self, number: int, progress: float) -> Draw:
        """Draw unrolls of the store, which is not empty; `progress` is the run's, from 0 to 1."""

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Take the priorities that an update gave to the unrolls in these slots."""


def draw_slots(random: np.random.Generator, size: int, number: int) -> np.ndarray:
    """Return slots below `size`, int64 [number]: each at most once, if there are as many."""
    return random.choice(size, number, replace=number > size)


class Uniform:
    """A sampler that draws each unroll with the same probability."""

    def __init__(self, store: Store, random: np.random.Generator):
        self._store, self._random = store, random

    def draw(self, number: int, progress: float) -> Draw:
        """Draw unrolls at random."""
        del progress
        slots = draw_slots(self._random, self._store.size, number)
        return Draw(slots, np.ones(number, np.float32), {})

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Ignore priorities."""


def importance_weights(priorities: np.ndarray, mean: float, correction: float) -> np.ndarray:
    """Return the weights, float32 [N] up to 1, of unrolls that were drawn by these priorities.

    They are (count x probability) to the power of -correction, at most 1; the `mean` is that of all
    stored unrolls' priorities. They are not divided by the largest weight of the store: one unroll
    with a priority of almost 0 would then shrink the weights of all others, and replayed unrolls
    would count for nothing beside new ones, whose weights are 1.
    """
    return (np.minimum(mean / priorities, 1.0) ** correction).astype(np.float32)


class Prioritised:
    """A sampler that draws in proportion to priorities to the power of `exponent`.

    Until an update has given an unroll a priority, it has its own first one or the largest so far.
    The power of the importance weights goes from `correction` to `final` over the share `anneal` of
    the run.
    """

    def __init__(
        self,
        store: Store,
        random: np.random.Generator,
        exponent: float = 0.6,
        correction: float = 0.4,
        final: float = 1.0,
        anneal: float = 1.0,
    ):
        self._store, self._random, self._exponent = store, random, exponent
        self._correction, self._final, self._anneal = correction, final, anneal
        self._tree = PriorityTree(store.capacity)
        self.largest = 1.0  # priority so far
        store.followers.append(self)

    def draw(self, number: int, progress: float) -> Draw:
        """Draw one unroll in each of `number` equal parts of the sum of priorities."""
        tree = self._tree
        positions = (np.arange(number) + self._random.random(number)) / number * tree.total
        slots = tree.find(positions)
        drawn = tree.get(slots)
        correction = annealed(self._correction, self._final, progress, self._anneal)
        weights = importance_weights(drawn, tree.total / self._store.size, correction)
        measured = {
            "priority_largest": self.largest,
            "priority_spread": float(drawn.std() / drawn.mean()),
        }
        return Draw(slots, weights, measured)

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Write the priorities of these slots; those that are no numbers count as the largest."""
        priorities = np.asarray(priorities, np.float64)
        good = np.isfinite(priorities) & (priorities >= 0)
        self.largest = max(self.largest, float(priorities[good].max(initial=0.0)))
        self._write(slots, np.where(good, priorities, self.largest))

    def scaled(self, slots: np.ndarray) -> np.ndarray:
        """Return the priorities of slots to the power of the exponent, to save them."""
        return self._tree.get(slots)

    def set_scaled(self, slots: np.ndarray, priorities: np.ndarray, largest: float) -> None:
        """Restore what `scaled` returned, and the largest priority."""
        self._tree.set(slots, priorities)
        self.largest = max(self.largest, largest)

    def added(self, slot: int) -> None:
        """Give a new unroll its first priority, or the largest one."""
        first = self._store[slot].priority
        self.feedback(np.array([slot]), np.array([self.largest if first is None else first]))

    def moved(self, slot: int, to: int) -> None:
        """Let a priority follow its unroll."""
        self._tree.set(np.array([to]), self._tree.get(np.array([slot])))

    def removed(self, slot: int) -> None:
        """Let an empty slot no longer be drawn."""
        self._tree.set(np.array([slot]), np.zeros(1))

    def _write(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._tree.set(slots, np.maximum(priorities, _LEAST) ** self._exponent)


def annealed(begin: float, end: float, progress: float, over: float) -> float:
    """Return a number that moves in a line from `begin` to `end` over this share of the run."""
    return begin + (end - begin) * min(progress / over if over else 1.0, 1.0)
