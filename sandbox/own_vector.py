"""An example of a vector of environments: the corridors of own_environment.py as arrays of places.

sandbox/own_environment.md explains it.
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv


class Corridors(VectorEnv):
    """Corridors of eleven places, which all step at once."""

    single_observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed=None, options=None):
        """Return to the near ends."""
        self._places, self._times = np.zeros((2, self.num_envs), np.int64)
        self._ended = np.zeros(self.num_envs, bool)
        return self._look(), {}

    def step(self, actions):
        """Move one place back or forward, or back to the near end after the end of an episode."""
        begins, moved = self._ended, np.maximum(0, self._places + np.where(actions == 1, 1, -1))
        self._places, self._times = np.where(begins, 0, [moved, self._times + 1])
        arrived, late = self._places == 10, self._times == 50
        self._ended = arrived | late
        return self._look(), np.where(begins, 0, arrived - 0.01), arrived, late & ~arrived, {}

    def _look(self):
        return (self._places[:, None] / 10).astype(np.float32)
