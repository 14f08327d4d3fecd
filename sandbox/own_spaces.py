"""An example of a user's own environment with every kind of space, and a mask of its actions.

sandbox/own_environment.md explains it.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple


class Panel(gymnasium.Env):
    """A panel of controls, to be set as its display shows; the reward is the share that is right.

    An episode takes ten steps, each with a new display. The last `broken` modes cannot be chosen.
    """

    def __init__(self, modes=4, broken=1, render_mode=None):
        self._modes, self._allowed = modes, modes - broken
        self.render_mode = render_mode
        self.observation_space = Dict(
            {
                "mode": Discrete(modes),
                "dials": MultiDiscrete([3, 2]),
                "lamps": MultiBinary(2),
                "screen": Tuple((Box(0, 255, (8, 8, 1), np.uint8), Box(-1, 1, (2,), np.float32))),
            }
        )
        self.action_space = Dict(
            {
                "mode": Discrete(modes),
                "dials": MultiDiscrete([3, 2]),
                "lamps": MultiBinary(2),
                "lever": Tuple((Discrete(2), Box(-1, 1, (2,), np.float32))),
            }
        )

    def reset(self, *, seed=None, options=None):
        """Show the first display."""
        super().reset(seed=seed)
        self._steps = 0
        return self._show()

    def step(self, action):
        """Compare the controls with the display, then show the next one."""
        wanted, image = self._wanted, self._image
        pointer = np.abs(action["lever"][1] - wanted["screen"][1]).mean()
        right = [
            action["mode"] == wanted["mode"],
            (action["dials"] == wanted["dials"]).mean(),
            (action["lamps"] == wanted["lamps"]).mean(),
            action["lever"][0] == image,
            max(0.0, 1.0 - pointer),
        ]
        self._steps += 1
        observation, info = self._show()
        return observation, float(np.mean(right)), self._steps == 10, False, info

    def _show(self):
        """Return the next display, and the mask of the actions that it allows."""
        random = self.np_random
        self._image = int(random.integers(2))  # whether the picture's left or right half is bright
        picture = np.zeros((8, 8, 1), np.uint8)
        picture[:, 4 * self._image : 4 * self._image + 4] = 255
        self._wanted = {
            "mode": random.integers(self._allowed),
            "dials": random.integers([3, 2]),
            "lamps": random.integers(2, size=2, dtype=np.int8),
            "screen": (picture, random.uniform(-1, 1, 2).astype(np.float32)),
        }
        mask = {"mode": np.arange(self._modes) < self._allowed}  # all else is allowed
        return self._wanted, {"action_mask": mask}


def make_panel(modes=4):
    """Return a panel all of whose modes can be chosen: a function in place of an id."""
    return Panel(modes, broken=0)


class ScaledReward(gymnasium.RewardWrapper):
    """A wrapper that multiplies rewards by `factor`."""

    def __init__(self, env, factor=0.5):
        super().__init__(env)
        self._factor = factor

    def reward(self, reward):
        """Return the new reward."""
        return reward * self._factor


gymnasium.register("Panel-v0", Panel, reward_threshold=8.5)


class Joint(gymnasium.Env):
    """All agents of a parallel environment of PettingZoo: one policy plays for their sum."""

    def __init__(self, game):
        self._game, agents = game, game.possible_agents
        self.observation_space = Dict({a: game.observation_space(a) for a in agents})
        self.action_space = Dict({a: game.action_space(a) for a in agents})

    def reset(self, *, seed=None, options=None):
        """Begin a game."""
        return self._game.reset(seed=seed)[0], {}

    def step(self, action):
        """Let all agents act."""
        observation, reward, ended, cut, _ = self._game.step(action)
        return observation, sum(reward.values()), all(ended.values()), all(cut.values()), {}
