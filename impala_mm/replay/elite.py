"""Kinds of replay that compare the features of unrolls: elite sampling and attentive replay.

Both draw more candidates than are needed and keep those that are most alike to the present: elite
sampling those of which the policy still thinks as it did when it played them, attentive replay
those that resemble the newest state. The number of candidates falls over the run, until in the end
unrolls are drawn at random. Features are what an algorithm's network computes of an observation
before its heads.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from impala_mm.replay.samplers import Draw, Sampler, SamplerSetup, draw_slots


def norm(a: np.ndarray, b: np.ndarray, order: float) -> np.ndarray:
    """Return the norm of this order of differences of features [..., F].

    Order 1 is the sum of their sizes, 2 the Euclidean distance, and infinity the largest size.
    """
    # In float64, in which small differences to a large power are not 0.
    return np.linalg.norm(np.subtract(a, b, dtype=np.float64), order, axis=-1)


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return 1 less the cosine of the angle between features [..., F]: 0 for the same direction.

    Features that are all 0 have no direction: they are at distance 0 from each other, and at 1 from
    all others.
    """
    lengths = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
    product = lengths[0] * lengths[1]
    similarity = np.where(product > 0, (a * b).sum(-1) / np.where(product > 0, product, 1.0), 0.0)
    return np.where((lengths[0] == 0) & (lengths[1] == 0), 0.0, 1.0 - similarity)


def kl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return KL(softmax(a) || softmax(b)) of features [..., F], in nats."""
    first, second = _log_softmax(a), _log_softmax(b)
    return (np.exp(first) * (first - second)).sum(-1)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def distance_of(name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the distance that the option `distance` names: the larger, the less alike."""
    named = {"cosine": cosine, "kl": kl}
    return named[name] if name in named else partial(norm, order=float(name.removeprefix("l")))


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


class _OfCandidates(Sampler):
    """A replay that draws candidates at random, and keeps those that are most alike."""

    strategy = "1"  # see `choose_elite`

    def __init__(self, setup: SamplerSetup):
        super().__init__(setup)
        self.distance = distance_of(str(self.options["distance"]))

    def distances(self, slots: np.ndarray) -> np.ndarray:
        """Return how unlike the unrolls in these slots are, float64 [N]."""
        raise NotImplementedError

    def draw(self, number: int, progress: float) -> Draw:
        """Draw candidates, no unroll twice if there are enough, and keep `number` of them.

        How many they are follows the run's progress, not how often unrolls are drawn.
        """
        store = self.store
        wanted = round(number * self.annealed(self.option("lambda"), 1.0, progress))
        slots = draw_slots(self.random, store.size, max(number, min(wanted, store.size)))
        measured = {}
        if len(slots) > number:
            distances = self.distances(slots)
            chosen = choose_elite(distances, store.uses[slots], number, self.strategy)
            measured["distance_of_candidates"] = float(distances.mean())
            measured["distance"] = float(distances[chosen].mean())
            slots = slots[chosen]
        return Draw(slots, np.ones(number, np.float32), measured)


class Attentive(_OfCandidates):
    """A replay that draws unrolls which resemble the last state of the newest one."""

    def distances(self, slots: np.ndarray) -> np.ndarray:
        """Return the mean distances of unrolls' steps from the last step of the newest unroll."""
        assert self.measures
        unrolls = [self.store[slot] for slot in [*slots, self.store.newest()]]
        features = self.measures.recorded(unrolls)  # [N + 1, T, F]
        state = np.broadcast_to(features[-1, -1], features[:-1].shape)
        return self.distance(features[:-1], state).mean(-1)


class Elite(_OfCandidates):
    """A replay that draws unrolls from which the policy has moved little.

    The distance of the present policy from the one that played an unroll is the mean over its
    steps, and computed again once it is `max_age` updates old.
    """

    def __init__(self, setup: SamplerSetup):
        super().__init__(setup)
        self.strategy = str(self.options["strategy"])
        self._values = np.zeros(self.store.capacity)
        self._known_at = np.full(self.store.capacity, -np.inf)  # update
        self._asked = self._computed = 0  # unrolls

    def distances(self, slots: np.ndarray) -> np.ndarray:
        """Return the distances of the policy from those that played the unrolls in these slots."""
        assert self.measures
        now = self.measures.updates()
        needed = np.unique(slots[now - self._known_at[slots] > self.option("max_age")])
        self._asked += len(slots)
        self._computed += len(needed)
        if len(needed):
            features = self.measures.both([self.store[slot] for slot in needed])
            self._values[needed] = self.distance(features.recorded, features.present).mean(-1)
            self._known_at[needed] = now
        return self._values[slots]

    def draw(self, number: int, progress: float) -> Draw:
        """Draw candidates, and keep those that the strategy chooses."""
        drawn = super().draw(number, progress)
        if drawn.measured:
            drawn.measured["cached_share"] = 1 - self._computed / self._asked
        return drawn

    def choose_removed(self) -> int:
        """Return the slot of the oldest unroll, or of the most distant of `compared` ones."""
        if self.options["insertion"] == "oldest":
            return self.store.oldest()
        number = min(int(self.option("compared")), self.store.size)
        slots = self.random.choice(self.store.size, number, replace=False)
        return int(slots[np.argmax(self.distances(slots))])

    def added(self, slot: int) -> None:
        """Forget the distance of the slot's last unroll."""
        self._known_at[slot] = -np.inf

    def moved(self, slot: int, to: int) -> None:
        """Let a distance follow its unroll."""
        self._values[to], self._known_at[to] = self._values[slot], self._known_at[slot]
