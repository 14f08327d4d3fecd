"""CartPole with a third action, which pushes to the left and to the right in turn."""

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Three(gymnasium.Wrapper):
    """CartPole whose actions are left, neither and right."""

    def __init__(self, render_mode=None):
        super().__init__(CartPoleEnv(render_mode=render_mode))
        self.action_space, self._steps = gymnasium.spaces.Discrete(3), 0

    def step(self, action):
        self._steps += 1
        return self.env.step({0: 0, 1: self._steps % 2, 2: 1}[int(action)])


gymnasium.register("Three-v0", Three, max_episode_steps=500)
