"""Environments with predictable steps, and a function that registers a test's own levels."""

import itertools

import gymnasium
import numpy as np

KINDS = ((3, "truncated"), (3, "terminated"), (1, "terminated"))  # lengths and ends of episodes


class Counting(gymnasium.Env):
    """An environment that observes the number of earlier observations.

    The reward is the action. Episodes follow `kinds` in a cycle; the first seed selects the first
    one. A step before a reset is an error.
    """

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, kinds=KINDS):
        self._kinds = kinds
        self._episode = self._seen = -1
        self._left = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._episode = seed - 1
        self._episode += 1
        self._left, self._kind = self._kinds[self._episode % len(self._kinds)]
        return self._see(), {}

    def step(self, action):
        assert self._left, "stepped after its end"
        self._left -= 1
        end = None if self._left else self._kind
        return self._see(), float(action), end == "terminated", end == "truncated", {}

    def _see(self):
        self._seen += 1
        return np.array([self._seen], np.float32)


gymnasium.register("Counting-v0", Counting)

_numbers = itertools.count()


def level(make_one, **registered):
    """Register a level that `make_one` makes, and return its name."""
    name = f"Testing{next(_numbers)}-v0"
    gymnasium.register(name, make_one, **registered)
    return name
