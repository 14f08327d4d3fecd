"""Environments that functions and classes make with arguments, and wrappers for them."""

import gymnasium
import numpy as np

NUMBER = 3


class Walk(gymnasium.Env):
    """A walk of `length` steps; the observation is the step, the reward the action."""

    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, length=4, render_mode=None):
        if length < 1:
            raise ValueError("a walk has a step at least")
        self.observation_space = gymnasium.spaces.Box(0, length, (length,), np.float32)
        self.render_mode, self._length = render_mode, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(self._length, np.float32), {}

    def step(self, action):
        self._steps += 1
        seen = np.full(self._length, self._steps, np.float32)
        return seen, float(action), self._steps == self._length, False, {}

    def render(self):
        return np.full((8, 8, 3), 7, np.uint8)


class Times(gymnasium.RewardWrapper):
    """Rewards times a factor."""

    def __init__(self, env, factor=10.0):
        super().__init__(env)
        self._factor = factor

    def reward(self, reward):
        return reward * self._factor


class Plus(gymnasium.RewardWrapper):
    """Rewards plus one."""

    def reward(self, reward):
        return reward + 1


def make_walk(length, render_mode=None):
    return Walk(length, render_mode)


def make_nothing():
    """Forget to return the environment."""


def make_several():
    return gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")


def make_badly():
    return Walk(*undefined)  # noqa: F821


def wrap_away(env):
    """Forget to return the environment."""


gymnasium.register("Walk-v0", Walk, kwargs={"length": 5})


class OnlyShown(Walk):
    """An environment that can be shown on a screen, and draws no pictures."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        assert render_mode is None or render_mode in self.metadata["render_modes"]
        super().__init__()


class WithoutArgument(Walk):
    """An environment that declares pictures, but takes no render mode."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self):
        super().__init__()
