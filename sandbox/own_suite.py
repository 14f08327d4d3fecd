"""An example of a user's own suite of levels: corridors by their length, such as `corridors:8`.

sandbox/own_environment.md explains it.
"""

import functools

import gymnasium
import numpy as np

from impala_mm.environments import Suite, register
from impala_mm.environments.types import ReferenceScores


class Corridor(gymnasium.Env):
    """A corridor with a reward of 1 at its end. Actions: 0 moves back, 1 forward."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)  # the place; the length

    def __init__(self, length):
        self._length = length

    def reset(self, *, seed=None, options=None):
        """Return to the near end."""
        super().reset(seed=seed)
        self._place = self._time = 0
        return self._look(), {}

    def step(self, action):
        """Move one place back or forward; the time is short."""
        self._place = max(0, self._place + (1 if action else -1))
        self._time += 1
        arrived = self._place == self._length
        return self._look(), float(arrived), arrived, self._time == 4 * self._length, {}

    def _look(self):
        return np.array([self._place / self._length, self._length / 20], np.float32)


# Mean returns of a random player, and of one who walks straight on.
_SCORES = {
    "4": ReferenceScores(low=0.53, high=1.0),
    "8": ReferenceScores(low=0.28, high=1.0),
    "16": ReferenceScores(low=0.08, high=1.0),
}


@register("corridors")
class Corridors(Suite):
    """All corridors; those of `levels` are the ones that are compared."""

    levels = tuple(_SCORES)
    scores = _SCORES
    reward_thresholds = dict.fromkeys(_SCORES, 0.95)

    def maker(self, level):
        """Return what makes a corridor of this length."""
        return functools.partial(Corridor, int(level)) if level.isdecimal() else None
