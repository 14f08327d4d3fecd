"""An environment whose observations identify it, and a check that unrolls mix none of them.

Actors load it as telling:Telling-v0.
"""

import secrets

import gymnasium
import numpy as np


class Telling(gymnasium.Env):
    """An environment that observes (its number, its instance's number, earlier observations)."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self._number, self._life, self._seen, self._left = -1, secrets.randbits(20), -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._number = seed
        self._left = int(self.np_random.integers(1, 30))
        return self._see(), {}

    def step(self, action):
        self._left -= 1
        return self._see(), 0.0, self._left == 0, False, {}

    def _see(self):
        self._seen += 1
        return np.array([self._number, self._life, self._seen], np.float32)


gymnasium.register("Telling-v0", Telling)


class Witness:
    """A checker of every unroll that is trained on."""

    def __init__(self):
        self.unrolls, self.lives = 0, {}  # lives: the last observation of each instance

    def sees(self, observation, first):
        """Check unrolls [T+1, B, 3], [T+1, B]: each of one environment, without gaps, each once."""
        for column in range(observation.shape[1]):
            number, life, seen = observation[:, column].T
            assert (number == number[0]).all(), f"environments are mixed: {number}"
            assert (life == life[0]).all(), f"instances are mixed: {life}"
            assert (np.diff(seen) == 1).all(), f"a step is missing: {seen}"
            before = self.lives.get((number[0], life[0]), 0.0)
            assert seen[0] == before, f"after {before} comes {seen[0]}"
            assert first[0, column] or seen[0] > 0
            self.lives[number[0], life[0]] = seen[-1]
            self.unrolls += 1
