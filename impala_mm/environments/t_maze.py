"""A T-maze: a sign at the start of a corridor says which way to turn at its end.

    start                 corridor                 junction
    sign left or right    nothing, `length` - 1    turn left or right: reward 1 or 0, terminated

The agent walks itself. A turn within the corridor, or a walk ahead at the junction, is a bump: it
costs 0.05 and changes nothing. So the last action before the junction is always the same, and a
network without memory, which reads its last action, too, has a mean return of at most 0.5.
"""

from typing import Any

import gymnasium
import numpy as np

_BUMP = -0.05
_LEFT, _RIGHT, _CORRIDOR, _JUNCTION = range(4)  # parts of an observation
_AHEAD, _TO_LEFT, _TO_RIGHT = range(3)  # actions
_CELL, _HIGH = 8, 24  # pixels of the picture: for each place, and of the corridor
_DARK, _WALL, _AGENT, _SIGN = (20, 24, 33), (44, 51, 68), (92, 170, 245), (245, 158, 66)


class TMaze(gymnasium.Env):
    """Observations float32 [4], one-hot: sign left, sign right, corridor, junction.

    Actions: ahead, left, right. The episode is truncated after 4 x `length` + 4 steps.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(self, length: int = 10, render_mode: str | None = None) -> None:
        """Make a corridor of `length` steps from the sign to the junction, at least 1."""
        if length < 1:
            raise ValueError(f"length is {length}, and must be at least 1")
        self.render_mode, self._length = render_mode, length
        self.observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._sign = _LEFT
        self._place = self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start an episode with a new sign."""
        super().reset(seed=seed)
        self._sign, self._place, self._time = int(self.np_random.integers(2)), 0, 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Walk ahead in the corridor, or turn at the junction."""
        self._time += 1
        late = self._time == 4 * self._length + 4
        at_junction = self._place == self._length
        if at_junction != (action == _AHEAD):
            if at_junction:
                turned = _LEFT if action == _TO_LEFT else _RIGHT
                return self._look(), float(turned == self._sign), True, False, {}
            self._place += 1
            return self._look(), 0.0, False, late, {}
        return self._look(), _BUMP, False, late, {}

    def render(self) -> np.ndarray:
        """Return a picture of the maze from above, uint8 [height, width, 3]."""
        width = (self._length + 1) * _CELL
        picture = np.full((3 * _HIGH, width, 3), _DARK, np.uint8)
        picture[_HIGH : 2 * _HIGH, :-_CELL] = picture[:, -_CELL:] = _WALL
        side = slice(0, _HIGH // 3) if self._sign == _LEFT else slice(-_HIGH // 3, None)
        picture[_HIGH : 2 * _HIGH][side, :_CELL] = _SIGN
        left = self._place * _CELL
        picture[_HIGH + 8 : 2 * _HIGH - 8, left + 1 : left + _CELL - 1] = _AGENT
        return picture

    def get_action_meanings(self) -> list[str]:
        """Return the actions' names."""
        return ["ahead", "left", "right"]

    def _look(self) -> np.ndarray:
        observation = np.zeros(4, np.float32)
        shown = _JUNCTION if self._place == self._length else _CORRIDOR
        observation[self._sign if self._place == 0 else shown] = 1
        return observation
