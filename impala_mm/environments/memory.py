"""A memory task: the first observation shows a cue that the agent must repeat nine steps later.

    entry  0        1 .. 7    8         9          10
           cue      blank     "clear"   "answer"   blank, terminated; reward 1 or 0

The reward is 1 if the action at "answer" equals the cue (0 or 1) and the action at "clear" was 0.
The second condition is there because networks also read their last action: a network without memory
could pass the cue on from action to action. An agent that takes action 0 at "clear" has lost it, so
without memory the mean return is at most 0.5.
"""

from typing import Any

import gymnasium
import numpy as np

_CLEAR, _ANSWER = 8, 9
_SHOWN = {_CLEAR: 2, _ANSWER: 3}  # step -> sign that the observation shows
_CELL = 64  # pixels of the picture, for each of the four signs
_DARK, _OFF, _TIME = (20, 24, 33), (44, 51, 68), (150, 160, 180)
_SIGNS = ((92, 170, 245), (245, 158, 66), (235, 235, 240), (110, 205, 130))  # when shown


class Memory(gymnasium.Env):
    """Observations float32 [4], one-hot or zeros: cue 0, cue 1, clear, answer. Actions: 0, 1."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._cue = self._time = 0
        self._cleared = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start an episode with a new cue."""
        super().reset(seed=seed)
        self._cue, self._time = int(self.np_random.integers(2)), 0
        return self._show(self._cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Advance by one step; only the actions at "clear" and "answer" matter."""
        asked, self._time = self._time, self._time + 1
        if asked == _CLEAR:
            self._cleared = action == 0
        if asked == _ANSWER:
            return self._show(), float(self._cleared and action == self._cue), True, False, {}
        return self._show(_SHOWN.get(self._time)), 0.0, False, False, {}

    def render(self) -> np.ndarray:
        """Return a picture, uint8 [height, width, 3]: the four signs above a bar for the time."""
        picture = np.full((_CELL + 16, len(_SIGNS) * _CELL, 3), _DARK, np.uint8)
        shown = self._cue if self._time == 0 else _SHOWN.get(self._time)
        for sign, colour in enumerate(_SIGNS):
            left = sign * _CELL
            picture[8 : _CELL - 8, left + 8 : left + _CELL - 8] = colour if sign == shown else _OFF
        past = 8 + (picture.shape[1] - 16) * self._time // (_ANSWER + 1)
        picture[_CELL : _CELL + 8, 8:-8] = _OFF
        picture[_CELL : _CELL + 8, 8:past] = _TIME
        return picture

    def _show(self, sign: int | None = None) -> np.ndarray:
        observation = np.zeros(4, np.float32)
        if sign is not None:
            observation[sign] = 1
        return observation
