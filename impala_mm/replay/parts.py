"""One replay of the mix: a store, how it is sampled, and what is removed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from impala_mm.config.replay_mix import Part
from impala_mm.replay.distances import DISTANCES
from impala_mm.replay.elite import Attentive, Elite, Measures, PolicyDistance
from impala_mm.replay.removal import MostDistant, Oldest, Removal
from impala_mm.replay.samplers import Prioritised, Sampler, Uniform
from impala_mm.replay.store import Store, StoredUnroll


class Replay(NamedTuple):
    """One replay of the mix."""

    kind: str
    columns: int  # of every batch
    store: Store
    sampler: Sampler
    removal: Removal
    random: np.random.Generator  # of which all replays of a learner draw

    def insert(self, unroll: StoredUnroll) -> None:
        """Store an unroll; remove others until there is room for it."""
        while self.store.lacks_room(len(unroll.content)):
            self.store.remove(self.removal.choose(self.store))
        self.store.add(unroll)

    def fill(self, unrolls: Sequence[StoredUnroll]) -> None:
        """Store unrolls of an earlier start, from the oldest to the newest; the oldest make room.

        The rule of removal is not asked: the learner that it may need is not made yet.
        """
        for unroll in unrolls:
            while self.store.lacks_room(len(unroll.content)):
                self.store.remove(self.store.oldest())
            self.store.add(unroll)

    def fill_slots(self, unrolls: Sequence[StoredUnroll]) -> bool:
        """Store unrolls in the slots 0, 1, ..., if the replay is empty and has room for all.

        Return whether it has. Larger keys are newer.
        """
        size = sum(len(unroll.content) for unroll in unrolls)
        if self.store.size or len(unrolls) > self.store.capacity or size > self.store.max_bytes:
            return False
        for unroll in unrolls:
            self.store.add(unroll)
        self.store.sort()
        return True

    def limit(self, max_bytes: float) -> None:
        """Let the unrolls take no more bytes than these; the oldest are removed."""
        self.store.max_bytes = max_bytes
        while self.store.size and self.store.bytes > max_bytes:
            self.store.remove(self.store.oldest())

    def write_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Pass priorities on for the unrolls that are still stored."""
        slots = self.store.slots_of(keys)
        held = slots >= 0
        if held.any():
            self.sampler.feedback(slots[held], priorities[held])


def make_replay(
    part: Part,
    columns: int,
    max_bytes: float,
    random: np.random.Generator,
    measures: Measures | None,
) -> Replay:
    """Return the replay that a part of the mix describes; `measures` if it compares features."""
    store, options = Store(part.capacity, max_bytes), part.options
    sampler: Sampler
    removal: Removal = Oldest()
    numbers = {name: float(v) for name, v in options.items() if not isinstance(v, str)}
    if part.kind == "prioritised":
        sampler = Prioritised(store, random, **numbers)
    elif part.kind == "uniform":
        sampler = Uniform(store, random)
    else:
        assert measures
        distance = DISTANCES[str(options["distance"])]
        candidates = numbers["lambda"], numbers["anneal"]
        if part.kind == "attentive":
            sampler = Attentive(store, random, distance, measures, *candidates)
        else:
            moved = PolicyDistance(store, distance, measures, numbers["max_age"])
            sampler = Elite(store, random, moved, str(options["strategy"]), *candidates)
            if options["insertion"] == "elite":
                removal = MostDistant(int(numbers["compared"]), moved, random)
    return Replay(part.kind, columns, store, sampler, removal, random)
