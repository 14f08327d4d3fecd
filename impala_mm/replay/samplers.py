"""Kinds of replay: how stored unrolls are drawn, at random or by priorities, and what makes room.

`elite` has the kinds that compare features. `config.replay_mix` says which options a kind has, and
`impala_mm.replay.register` adds one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from impala_mm.config.registry import load
from impala_mm.config.replay_mix import KINDS, Part
from impala_mm.replay.store import Store, StoredUnroll

_LEAST = 1e-6  # priority of an unroll whose error is 0, so that it may be drawn again
_MOST_WEIGHT = 10.0  # of an unroll that is drawn more seldom than others


class Draw(NamedTuple):
    """N unrolls that a sampler chose."""

    slots: np.ndarray  # int64 [N]
    weights: np.ndarray  # float32 [N]: by which their losses count
    measured: dict[str, float]  # metrics of this draw, by name


class ComparedFeatures(NamedTuple):
    """Features of the T steps of N unrolls, float32 [N, T, F]."""

    recorded: np.ndarray  # those of the policy that played, which its actor has recorded
    present: np.ndarray  # those of the learner's present network


class Measures(NamedTuple):
    """The learner's functions from which features are known."""

    recorded: Callable[[list[StoredUnroll]], np.ndarray]  # [N, T, F]
    both: Callable[[list[StoredUnroll]], ComparedFeatures]
    updates: Callable[[], int]  # the number of updates that the learner has made


class SamplerSetup(NamedTuple):
    """The arguments from which a replay is made."""

    part: Part  # of the mix: its kind, options and capacity
    max_bytes: float  # of the stored unrolls
    random: np.random.Generator  # that of all replays of a learner
    measures: Measures | None = None  # if the kind needs "features"


class Sampler:
    """A replay of the mix: a store, and how its unrolls are drawn. A subclass is a kind of replay.

    What a subclass keeps for each slot follows the unrolls by `added`, `moved` and `removed`, and
    is saved by `state`.
    """

    def __init__(self, setup: SamplerSetup):
        self.kind, self.name, self.options = setup.part.kind, setup.part.name, setup.part.options
        self.random, self.measures = setup.random, setup.measures
        self.store = Store(setup.part.capacity, setup.max_bytes)

    # -- what a kind defines

    def draw(self, number: int, progress: float) -> Draw:
        """Draw unrolls of the store, which is not empty; `progress` is the run's, from 0 to 1."""
        raise NotImplementedError

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Take the priorities that an update gave to the unrolls in these slots."""

    def choose_removed(self) -> int:
        """Return the slot of the unroll that makes room for a new one; the store is not empty."""
        return self.store.oldest()

    def added(self, slot: int) -> None:
        """Take note of a new unroll in this slot."""

    def moved(self, slot: int, to: int) -> None:
        """Take note that the unroll of a slot is now in another one, whose unroll is removed."""

    def removed(self, slot: int) -> None:
        """Take note that a slot is empty."""

    def state(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Return what a resumed run continues with, by name.

        An array [N, ...] belongs to the unrolls in these N slots, one without axes to the replay.
        """
        del slots
        return {}

    def restore(self, slots: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
        """Take what `state` returned, with the rows of those unrolls that are stored again.

        It is empty for unrolls of a run that had no replay of this kind, and called several times
        if several learners' replays are joined.
        """

    # -- what all kinds have in common

    def option(self, name: str) -> float:
        """Return the value of an option that is a number."""
        return float(self.options[name])

    def annealed(self, begin: float, end: float, progress: float) -> float:
        """Return a number that moves in a line from `begin` to `end`.

        It does so over the share of the run that the option `anneal` gives.
        """
        over = self.option("anneal")
        return begin + (end - begin) * min(progress / over if over else 1.0, 1.0)

    def insert(self, unroll: StoredUnroll) -> None:
        """Store an unroll; remove others until there is room for it."""
        while self.store.lacks_room(len(unroll.content)):
            self._remove(self.choose_removed())
        self._add(unroll)

    def fill(self, unrolls: Sequence[StoredUnroll]) -> None:
        """Store unrolls of an earlier start, from the oldest to the newest; the oldest make room.

        `choose_removed` is not asked: the learner that it may need is not made yet.
        """
        for unroll in unrolls:
            while self.store.lacks_room(len(unroll.content)):
                self._remove(self.store.oldest())
            self._add(unroll)

    def fill_slots(self, unrolls: Sequence[StoredUnroll]) -> bool:
        """Store unrolls in the slots 0, 1, ..., if the replay is empty and has room for all.

        Return whether it has. Larger keys are newer.
        """
        store, size = self.store, sum(len(unroll.content) for unroll in unrolls)
        if store.size or len(unrolls) > store.capacity or size > store.max_bytes:
            return False
        for unroll in unrolls:
            self._add(unroll)
        store.sort()
        return True

    def limit(self, max_bytes: float) -> None:
        """Let the unrolls take no more bytes than these; the oldest are removed."""
        self.store.max_bytes = max_bytes
        while self.store.size and self.store.bytes > max_bytes:
            self._remove(self.store.oldest())

    def write_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Pass priorities on for the unrolls that are still stored."""
        slots = self.store.slots_of(keys)
        held = slots >= 0
        if held.any():
            self.feedback(slots[held], priorities[held])

    def _add(self, unroll: StoredUnroll) -> None:
        self.store.add(unroll)
        self.added(self.store.size - 1)

    def _remove(self, slot: int) -> None:
        self.store.remove(slot)
        last = self.store.size
        if slot != last:
            self.moved(last, slot)
        self.removed(last)


def make_replay(setup: SamplerSetup) -> Sampler:
    """Return the replay that a part of the mix describes."""
    kind: type[Sampler] = load(KINDS[setup.part.kind].sampler)
    return kind(setup)


def draw_slots(random: np.random.Generator, size: int, number: int) -> np.ndarray:
    """Return slots below `size`, int64 [number]: each at most once, if there are as many."""
    return random.choice(size, number, replace=number > size)


class Uniform(Sampler):
    """A replay that draws each unroll with the same probability."""

    def draw(self, number: int, progress: float) -> Draw:
        """Draw unrolls at random."""
        del progress
        slots = draw_slots(self.random, self.store.size, number)
        return Draw(slots, np.ones(number, np.float32), {})


def importance_weights(priorities: np.ndarray, mean: float, correction: float) -> np.ndarray:
    """Return the weights, float32 [N], of unrolls that were drawn by these priorities.

    They are 1 / (count x probability), at most 10, to the power of `correction`; the `mean` is that
    of all stored unrolls' priorities. They are not divided by the largest weight of the store: one
    unroll with a priority of almost 0 would then shrink the weights of all others, and replayed
    unrolls would count for nothing beside new ones, whose weights are 1. With a correction of 1
    all unrolls of at least a tenth of the mean priority count equally.
    """
    return (np.minimum(mean / priorities, _MOST_WEIGHT) ** correction).astype(np.float32)


class Prioritised(Sampler):
    """A replay that draws in proportion to priorities to the power of `exponent`.

    Until an update has given an unroll a priority, it has its own first one or the largest so far.
    The power of the importance weights goes from `correction` to `final`.
    """

    def __init__(self, setup: SamplerSetup):
        super().__init__(setup)
        self._tree = PriorityTree(self.store.capacity)
        self._largest = 1.0  # priority so far

    def draw(self, number: int, progress: float) -> Draw:
        """Draw one unroll in each of `number` equal parts of the sum of priorities."""
        tree = self._tree
        positions = (np.arange(number) + self.random.random(number)) / number * tree.total
        slots = tree.find(positions)
        drawn = tree.get(slots)
        correction = self.annealed(self.option("correction"), self.option("final"), progress)
        weights = importance_weights(drawn, tree.total / self.store.size, correction)
        measured = {
            "priority_largest": self._largest,
            "priority_spread": float(drawn.std() / drawn.mean()),
        }
        return Draw(slots, weights, measured)

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Write the priorities of these slots; those that are no numbers count as the largest."""
        priorities = np.asarray(priorities, np.float64)
        good = np.isfinite(priorities) & (priorities >= 0)
        self._largest = max(self._largest, float(priorities[good].max(initial=0.0)))
        written = np.where(good, priorities, self._largest)
        self._tree.set(slots, np.maximum(written, _LEAST) ** self.option("exponent"))

    def added(self, slot: int) -> None:
        """Give a new unroll its first priority, or the largest one."""
        first = self.store[slot].priority
        self.feedback(np.array([slot]), np.array([self._largest if first is None else first]))

    def moved(self, slot: int, to: int) -> None:
        """Let a priority follow its unroll."""
        self._tree.set(np.array([to]), self._tree.get(np.array([slot])))

    def removed(self, slot: int) -> None:
        """Let an empty slot no longer be drawn."""
        self._tree.set(np.array([slot]), np.zeros(1))

    def state(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Return the priorities to the power of the exponent, and the largest of all."""
        return {"priorities": self._tree.get(slots), "largest": np.array(self._largest)}

    def restore(self, slots: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
        """Let unrolls have the priorities that `state` returned."""
        if "priorities" in state:
            self._tree.set(slots, state["priorities"])
            self._largest = max(self._largest, float(state.get("largest", 1.0)))


class PriorityTree:
    """The priorities of slots: draws in proportion to them, and their sum, in logarithmic time.

        level 0            s0 + s1 + s2 + s3             the root is node 1
        level 1       s0 + s1        s2 + s3             node n has the children 2n and 2n + 1
        leaves       s0     s1      s2     s3            slot i is node size + i

    Whole arrays of slots go through one level after the other, so that NumPy does the work. A slot
    of priority 0 is never drawn.
    """

    def __init__(self, capacity: int):
        self._size = 1 << max(capacity - 1, 1).bit_length()
        self._sums = np.zeros(2 * self._size)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._sums[1])

    def get(self, slots: np.ndarray) -> np.ndarray:
        """Return the priorities of these slots, float64 [N]."""
        return self._sums[self._size + slots]

    def set(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Give these slots, int64 [N], new priorities; of a repeated slot the last one counts."""
        nodes = self._size + np.asarray(slots, np.int64)
        self._sums[nodes] = priorities
        while len(nodes) and nodes[0] > 1:  # all are on one level
            nodes = nodes >> 1
            left = 2 * nodes
            self._sums[nodes] = self._sums[left] + self._sums[left + 1]

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Return the slot in which each position, float64 [N] from 0 to below `total`, lies."""
        nodes = np.ones(len(positions), np.int64)
        rest = np.array(positions, np.float64)
        while len(nodes) and nodes[0] < self._size:
            left = 2 * nodes
            before = self._sums[left]
            # A rounded sum must not lead into a part that is empty.
            goes_right = (rest >= before) & (self._sums[left + 1] > 0)
            rest = np.where(goes_right, rest - before, rest)
            nodes = left + goes_right
        return nodes - self._size
