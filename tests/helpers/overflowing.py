"""A level whose rewards become too large in the environments of actor 1 alone."""

import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

HUGE = float(np.finfo(np.float32).max)
STEPS = 200  # steps of an environment before its rewards are bad


class HugeReward(gymnasium.Env):
    """A level whose episodes take 20 steps."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        is_bad = self.steps >= STEPS and "--task=1" in sys.argv
        return self.see(), HUGE if is_bad else 1.0, self.steps % 20 == 0, False, {}

    def see(self):
        return self.np_random.random(3, np.float32)


gymnasium.register("HugeReward-v0", HugeReward)
