"""Environments whose every step is known beforehand, and a way to make levels of a test's own."""

import itertools

import gymnasium
import numpy as np

KINDS = ((3, "truncated"), (3, "terminated"), (1, "terminated"))  # episodes, in turn


class Counting(gymnasium.Env):
    """Observation: how many came before it, resets included. Reward: the action.

    Episodes as in `kinds`, again and again; the first seed says with which it begins. Stepping it
    before a reset is an error.
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
    """A level name for what `make_one` makes."""
    name = f"Testing{next(_numbers)}-v0"
    gymnasium.register(name, make_one, **registered)
    return name
