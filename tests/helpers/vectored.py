"""Vectors of environments: gymnasium's, one that is only like them, and broken ones."""

from typing import ClassVar

import gymnasium
import numpy as np
from acting import Doors, Harbour, Rooms, Signals, Stalls
from counting import Counting
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Paying(Counting):
    """A game in which even the idle action pays."""

    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, reward + 0.5, *rest


GAMES = {game.__name__: game for game in (Counting, Doors, Harbour, Paying, Rooms, Signals, Stalls)}


def make_sync(num_envs, game="Paying", mode="NEXT_STEP"):
    """Return gymnasium's vector of one of the games."""
    return SyncVectorEnv([GAMES[game]] * num_envs, autoreset_mode=AutoresetMode[mode])


def make_three():
    """Return a vector, though it does not take the number of its environments."""
    return make_sync(3)


class Alike:
    """An object with the interface of a vector, around one of gymnasium's."""

    def __init__(self, num_envs, game="Paying", mode="NEXT_STEP", wrong=None):
        self._vector = make_sync(num_envs, game, mode)
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode[mode]}
        self.single_observation_space = self._vector.single_observation_space
        self.single_action_space = self._vector.single_action_space
        self.wrong = wrong  # changes what a step returns
        if hasattr(GAMES[game], "action_masks"):
            self.action_masks = lambda: np.stack(self._vector.call("action_masks"))

    def reset(self, *, seed=None, options=None):
        return self._vector.reset(seed=seed, options=options)

    def step(self, actions):
        results = self._vector.step(actions)
        return self.wrong(*results) if self.wrong else results

    def close(self):
        self._vector.close()


class Arithmetic(gymnasium.vector.VectorEnv):
    """A vector without environments: each number grows by its action, and ends at 9."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": 5}

    def __init__(self, num_envs, seed, render_mode=None):
        self.num_envs, self.made_with, self.render_mode = num_envs, seed, render_mode
        self.single_observation_space = gymnasium.spaces.Box(0, 12, (1,), np.float64)
        self.single_action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        assert seed is None, "it was seeded when it was made"
        self._numbers = np.random.default_rng(self.made_with).random((self.num_envs, 1))
        self._ended = np.zeros(self.num_envs, bool)
        return self._numbers, {}

    def step(self, actions):
        new = np.where(self._ended[:, None], 0.5, self._numbers + actions[:, None])
        reward = np.where(self._ended, 0, actions).astype(np.float64)
        self._numbers, self._ended = new, new[:, 0] >= 9
        return new, reward, self._ended, np.zeros(self.num_envs, bool), {"_steps": 3}

    def render(self):
        return np.full((self.num_envs, 4, 6, 3), self._numbers.astype(np.uint8)[:, :, None, None])
