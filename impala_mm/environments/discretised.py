"""Choices among a few numbers in place of a Box's numbers, by --discretization.

    lin     evenly spaced from the lower to the upper bound
    log     the middle, and on both sides of it distances that grow by equal factors up to the bound

`Options.wrappers` puts `Discretised` around the environment, outside of --env_wrappers.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from impala_mm.config.messages import join_lines
from impala_mm.environments.types import BadLevel


class Discretised(gymnasium.ActionWrapper):
    """An environment whose action is a choice for each number of its Box."""

    def __init__(self, env: Any, spacing: str, choices: int, ratio: float):
        """Offer this number of choices; `ratio` is the largest distance of `log` to the least."""
        super().__init__(env)
        flag, space = f"--discretization={spacing}", env.action_space
        if not isinstance(space, Box):
            raise BadLevel(
                f"{flag} makes choices of a Box's numbers, and the actions are "
                f"{join_lines(space)}: leave it out"
            )
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise BadLevel(
                f"{flag} needs bounds, and the actions are {join_lines(space)}: limit them by "
                f"--env_wrappers=MODULE:NAME, an ActionWrapper of yours whose space has bounds"
            )
        low, high = (np.ravel(ends).astype(np.float64) for ends in (space.low, space.high))
        shares = places(spacing, choices, ratio)
        self._numbers = low / 2 + high / 2 + (high / 2 - low / 2) * shares[:, None]  # [choices, D]
        if space.dtype.kind in "iu":
            self._numbers = np.rint(self._numbers)
        self._box = space
        one = low.size == 1
        self.action_space = Discrete(choices) if one else MultiDiscrete([choices] * low.size)

    def action(self, action: Any) -> np.ndarray:
        """Return the numbers of the choices, as the Box has them."""
        numbers = self._numbers[np.ravel(action), np.arange(self._numbers.shape[1])]
        return numbers.astype(self._box.dtype).reshape(self._box.shape)


def places(spacing: str, choices: int, ratio: float) -> np.ndarray:
    """Return where the numbers are, from -1 at the lower bound to 1 at the upper one."""
    if spacing == "lin":
        return np.linspace(-1, 1, choices)
    if choices % 2 == 0:
        raise BadLevel(
            f"--n_actions_per_dim={choices}: --discretization=log needs an odd number, the middle "
            f"and as many numbers on either side of it"
        )
    side = np.geomspace(1, 1 / ratio, choices // 2)  # from the bound to the middle
    return np.concatenate([-side, [0], side[::-1]])
