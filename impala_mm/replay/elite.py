"""Samplers that compare the features of unrolls: elite sampling and attentive replay.

Both draw more candidates than are needed and keep those that are most alike to the present: elite
sampling those of which the policy still thinks as it did when it played them, attentive replay
those that resemble the newest state. The number of candidates falls over the run, until in the end
unrolls are drawn at random. Features are what an algorithm's network computes of an observation
before its heads.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from impala_mm.replay.samplers import Draw, annealed, draw_slots
from impala_mm.replay.store import Store, StoredUnroll

Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Features(NamedTuple):
    """Features of the T steps of N unrolls, float32 [N, T, F]."""

    recorded: np.ndarray  # those of the policy that played, which its actor has recorded
    present: np.ndarray  # those of the learner's present network


class Measures(NamedTuple):
    """The learner's functions from which features are known."""

    recorded: Callable[[list[StoredUnroll]], np.ndarray]  # [N, T, F]
    both: Callable[[list[StoredUnroll]], Features]
    updates: Callable[[], int]  # the number of updates that the learner has made


class PolicyDistance:
    """The distance of the present policy from the one that played each unroll, by their features.

    It is the mean over the unroll's steps, and computed again once it is `max_age` updates old.
    """

    def __init__(self, store: Store, distance: Distance, measures: Measures, max_age: float):
        self._store, self._distance, self._measures = store, distance, measures
        self._max_age = max_age
        self._values = np.zeros(store.capacity)
        self._known_at = np.full(store.capacity, -np.inf)  # update
        self.asked = self.computed = 0  # unrolls
        store.followers.append(self)

    def __call__(self, slots: np.ndarray) -> np.ndarray:
        """Return the distances of the unrolls in these slots, float64 [N]."""
        now = self._measures.updates()
        needed = np.unique(slots[now - self._known_at[slots] > self._max_age])
        self.asked += len(slots)
        self.computed += len(needed)
        if len(needed):
            features = self._measures.both([self._store[slot] for slot in needed])
            self._values[needed] = self._distance(features.recorded, features.present).mean(-1)
            self._known_at[needed] = now
        return self._values[slots]

    def added(self, slot: int) -> None:
        """Forget the distance of the slot's last unroll."""
        self._known_at[slot] = -np.inf

    def moved(self, slot: int, to: int) -> None:
        """Let a distance follow its unroll."""
        self._values[to], self._known_at[to] = self._values[slot], self._known_at[slot]

    def removed(self, slot: int) -> None:
        """Forget the distance of an empty slot."""
        self._known_at[slot] = -np.inf


def choose_elite(distances: np.ndarray, uses: np.ndarray, number: int, strategy: str) -> np.ndarray:
    """Return which of the candidates are drawn, int64 [number].

    `distances` and `uses`, how often each was drawn before, are [M], for M >= number.

      1  the nearest ones
      2  candidates are sorted by distance into `number` groups; the nearest of each
      3  those that were drawn least often, and of these the nearest
      4  as 2, but the one of each group that was drawn least often
    """
    if strategy == "1":
        return np.argsort(distances, kind="stable")[:number]
    if strategy == "3":
        return np.lexsort((distances, uses))[:number]
    groups = np.array_split(np.argsort(distances, kind="stable"), number)
    if strategy == "2":
        return np.array([group[0] for group in groups])
    return np.array([group[np.argmin(uses[group])] for group in groups])


class Elite:
    """A sampler that draws unrolls from which the policy has moved little."""

    def __init__(
        self,
        store: Store,
        random: np.random.Generator,
        distance: PolicyDistance,
        strategy: str,
        candidates: float,
        anneal: float,
    ):
        """Draw `candidates` times as many unrolls as are needed, fewer over the run."""
        self._store, self._random, self._distance = store, random, distance
        self._strategy, self._candidates, self._anneal = strategy, candidates, anneal

    def draw(self, number: int, progress: float) -> Draw:
        """Draw candidates at random, and keep those that the strategy chooses."""
        slots = _draw_candidates(
            self._random, self._store, number, self._candidates, progress, self._anneal
        )
        measured = {}
        if len(slots) > number:
            distances = self._distance(slots)
            chosen = choose_elite(distances, self._store.uses[slots], number, self._strategy)
            measured["distance_of_candidates"] = float(distances.mean())
            measured["distance"] = float(distances[chosen].mean())
            measured["cached_share"] = 1 - self._distance.computed / self._distance.asked
            slots = slots[chosen]
        return Draw(slots, np.ones(number, np.float32), measured)

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Ignore priorities."""


class Attentive:
    """A sampler that draws unrolls which resemble the last state of the newest one."""

    def __init__(
        self,
        store: Store,
        random: np.random.Generator,
        distance: Distance,
        measures: Measures,
        candidates: float,
        anneal: float,
    ):
        """Draw `candidates` times as many unrolls as are needed, fewer over the run."""
        self._store, self._random, self._distance = store, random, distance
        self._measures, self._candidates, self._anneal = measures, candidates, anneal

    def draw(self, number: int, progress: float) -> Draw:
        """Draw candidates at random, and keep the most similar ones."""
        store = self._store
        slots = _draw_candidates(
            self._random, store, number, self._candidates, progress, self._anneal
        )
        measured = {}
        if len(slots) > number:
            unrolls = [store[slot] for slot in [*slots, store.newest()]]
            features = self._measures.recorded(unrolls)  # [N + 1, T, F]
            state = features[-1, -1]
            distances = self._distance(features[:-1], np.broadcast_to(state, features[:-1].shape))
            distances = distances.mean(-1)
            chosen = choose_elite(distances, store.uses[slots], number, "1")
            measured["distance_of_candidates"] = float(distances.mean())
            measured["distance"] = float(distances[chosen].mean())
            slots = slots[chosen]
        return Draw(slots, np.ones(number, np.float32), measured)

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Ignore priorities."""


def _draw_candidates(
    random: np.random.Generator,
    store: Store,
    number: int,
    candidates: float,
    progress: float,
    anneal: float,
) -> np.ndarray:
    """Return the slots of candidates, at least `number`, and no unroll twice if there are enough.

    Their number follows the run's progress, not how often unrolls are drawn.
    """
    wanted = round(number * annealed(candidates, 1.0, progress, anneal))
    return draw_slots(random, store.size, max(number, min(wanted, store.size)))
