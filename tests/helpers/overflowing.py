"""Levels whose rewards become too large, or NaN, in the environments of actor 1 alone."""

import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

HUGE = float(np.finfo(np.float32).max)
STEPS = 200  # steps of an environment before its rewards are bad


class Sound(gymnasium.Env):
    """A level without a fault, whose episodes take 20 steps."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        return self.see(), self.reward(), self.steps % 20 == 0, False, {}

    def see(self):
        return self.np_random.random(3, np.float32)

    def reward(self):
        return 1.0

    @property
    def is_bad(self):
        return self.steps >= STEPS and "--task=1" in sys.argv


class HugeReward(Sound):
    def reward(self):
        return HUGE if self.is_bad else 1.0


class NaNReward(Sound):
    def reward(self):
        return np.nan if self.is_bad else 1.0


for _level in (HugeReward, NaNReward):
    gymnasium.register(f"{_level.__name__}-v0", _level)
