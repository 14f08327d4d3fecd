"""BitFlip: a task with goals whose reward is found only by hindsight (values.md has the command).

The agent sees 15 bits and the bits that it shall make of them, and flips one bit in each step. The
reward is 0 once all bits are right, which ends the episode, and -1 before. With 15 bits there are
32,768 goals, so that an agent that acts at random is hardly ever rewarded within 15 steps.

    python experiment.py --level_name=sandbox.bit_flip:BitFlip-v0 --algorithm=dqn --her_ratio=4
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class BitFlip(gymnasium.Env):
    """Bits, each 0 or 1, of which an action flips one."""

    def __init__(self, bits=15):
        space = Box(0, 1, (bits,), np.float32)
        self.observation_space = Dict(observation=space, achieved_goal=space, desired_goal=space)
        self.action_space = Discrete(bits)

    def reset(self, *, seed=None, options=None):
        """Draw the bits, and other ones as the goal."""
        super().reset(seed=seed)
        size = self.action_space.n
        self._bits = self._goal = self.np_random.integers(2, size=size).astype(np.float32)
        while np.array_equal(self._bits, self._goal):
            self._goal = self.np_random.integers(2, size=size).astype(np.float32)
        return self._look(), {}

    def step(self, action):
        """Flip one bit."""
        self._bits = self._bits.copy()
        self._bits[action] = 1 - self._bits[action]
        pair = self._bits, self._goal
        ended = self.compute_terminated(*pair, {})
        return self._look(), self.compute_reward(*pair, {}), ended, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        """Return 0 where the goal is reached, and -1 elsewhere."""
        return np.all(achieved_goal == desired_goal, axis=-1) - 1.0

    def compute_terminated(self, achieved_goal, desired_goal, info):
        """Return whether the goal is reached, which ends an episode."""
        return bool(np.array_equal(achieved_goal, desired_goal))

    def _look(self):
        return {
            "observation": self._bits,
            "achieved_goal": self._bits,
            "desired_goal": self._goal,
        }


gymnasium.register("BitFlip-v0", BitFlip, max_episode_steps=15, reward_threshold=-8)
