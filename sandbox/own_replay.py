"""A kind of replay of your own: unrolls are drawn by the rank of their errors.

    python experiment.py --import=sandbox.own_replay --replay=queue:0.5,ranked:0.5:10000:power=0.5

The unroll with the largest error at its last update has rank 1, and the probability of an unroll is
proportional to 1 / rank^power (rank-based prioritised replay, Schaul et al. 2016).
"""

from collections.abc import Mapping

import numpy as np

from impala_mm.replay import Option, register
from impala_mm.replay.samplers import Draw, Sampler, SamplerSetup


@register("ranked", options={"power": Option(0.7, most=10)})
class Ranked(Sampler):
    """A replay that draws by the ranks of errors; a new unroll comes before all others."""

    def __init__(self, setup: SamplerSetup):
        super().__init__(setup)
        self._errors = np.zeros(self.store.capacity)

    def draw(self, number: int, progress: float) -> Draw:
        """Draw unrolls, and weight them by 1 / (count x probability), at most 10."""
        size = self.store.size
        ranks = np.zeros(size)
        ranks[np.argsort(-self._errors[:size], kind="stable")] = np.arange(1, size + 1)
        chances = ranks ** -self.option("power")
        chances /= chances.sum()
        slots = self.random.choice(size, number, p=chances)
        weights = np.minimum(1 / (size * chances[slots]), 10.0)
        return Draw(slots, weights.astype(np.float32), {"rank": float(ranks[slots].mean())})

    def feedback(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Keep the errors that an update computed."""
        self._errors[slots] = priorities

    def added(self, slot: int) -> None:
        """Let a new unroll be drawn soon."""
        self._errors[slot] = np.inf

    def moved(self, slot: int, to: int) -> None:
        """Let an error follow its unroll, which takes the slot of one that was removed."""
        self._errors[to] = self._errors[slot]

    def state(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Return the errors of these unrolls, which --replay_save saves."""
        return {"errors": self._errors[slots]}

    def restore(self, slots: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
        """Take the errors of unrolls that a resumed run has read."""
        if "errors" in state:
            self._errors[slots] = state["errors"]
