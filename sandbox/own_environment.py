"""An example of a user's own environment: a corridor with a reward of 1 at its far end.

sandbox/own_environment.md explains it.
"""

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    """A corridor of eleven places.

    Actions: 0 moves back, 1 forward. The observation is the place, from 0 to 1.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Return to the near end."""
        super().reset(seed=seed)
        self._place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """Move one place back or forward; each step costs 0.01."""
        self._place = max(0, self._place + (1 if action else -1))
        arrived = self._place == 10
        return np.full(1, self._place / 10, np.float32), arrived - 0.01, arrived, False, {}


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=50, reward_threshold=0.85)
