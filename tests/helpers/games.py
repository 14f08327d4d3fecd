"""Variants of small games, by their names in this module: pictures, slow and hanging ones."""

import time

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from impala_mm.environments.small_games import Catch

_MARGIN = 2  # pixels


class PictureCatch(gymnasium.ObservationWrapper):
    """Catch, drawn in grey: shifts by up to the margin leave the board in sight."""

    def __init__(self, render_mode=None):
        super().__init__(Catch(render_mode))
        shape = [n + 2 * _MARGIN for n in self.env.observation_space.shape]
        self.observation_space = gymnasium.spaces.Box(0, 255, (*shape, 1), np.uint8)

    def observation(self, observation):
        """Return the board as a picture."""
        return np.pad(255 * observation.astype(np.uint8), _MARGIN)[..., None]


class Sleeping(Catch):
    """Catch as slow as a simulator, 2 ms per step."""

    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


class Hanging(Catch):
    """Catch that hangs a second after its first step."""

    begin = None

    def step(self, action):
        self.begin = self.begin or time.monotonic()
        if time.monotonic() > self.begin + 1:
            time.sleep(1e6)
        time.sleep(0.005)
        return super().step(action)


class Three(gymnasium.Wrapper):
    """CartPole with a third action, which pushes to the left and to the right in turn."""

    def __init__(self, render_mode=None):
        super().__init__(CartPoleEnv(render_mode=render_mode))
        self.action_space, self._steps = gymnasium.spaces.Discrete(3), 0

    def step(self, action):
        self._steps += 1
        return self.env.step({0: 0, 1: self._steps % 2, 2: 1}[int(action)])


gymnasium.register("Sleeping-v0", Sleeping)
gymnasium.register("Hanging-v0", Hanging)
gymnasium.register("Three-v0", Three, max_episode_steps=500)
