"""Small games for tests and first runs: catch, memory and a T-maze; each is a suite of its own.

They are also in gymnasium's registry, as impala_mm/Catch-v0, impala_mm/Memory-v0 and
impala_mm/TMaze-v0.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from impala_mm.environments import Suite

# Colours of pictures.
_DARK, _GREY, _BLUE, _ORANGE = (20, 24, 33), (44, 51, 68), (92, 170, 245), (245, 158, 66)

# Catch
_ROWS, _COLUMNS = 10, 5
_SQUARE = 32  # pixels of the picture, for each cell of the board
_LINE, _BALL, _PADDLE = (36, 42, 56), _ORANGE, _BLUE

# Memory
_CLEAR, _ANSWER = 8, 9
_SHOWN = {_CLEAR: 2, _ANSWER: 3}  # step -> sign that the observation shows
_FIELD = 64  # pixels of the picture, for each of the four signs
_PAST = (150, 160, 180)
_SIGNS = (_BLUE, _ORANGE, (235, 235, 240), (110, 205, 130))  # when shown

# The T-maze
_BUMP = -0.05
_LEFT, _RIGHT, _CORRIDOR, _JUNCTION = range(4)  # parts of an observation
_AHEAD, _TO_LEFT, _TO_RIGHT = range(3)  # actions
_PLACE, _HIGH = 8, 24  # pixels of the picture: for each place, and of the corridor


class Catch(gymnasium.Env):
    """The player moves a paddle under a falling ball, on a board of 10 rows and 5 columns.

    The observation is a board of zeros with a 1 for the ball and one for the paddle. Actions: left,
    stay, right. The ball starts in a random column of the top row, the paddle in the middle of the
    bottom row. After nine steps the ball is in the bottom row and the episode ends: with reward 1
    if the paddle is in the same column, otherwise with -1. A random policy has a mean return of
    -0.6.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 1, (_ROWS, _COLUMNS), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._row = self._column = self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start an episode with a new ball."""
        super().reset(seed=seed)
        self._row, self._column = 0, int(self.np_random.integers(_COLUMNS))
        self._paddle = _COLUMNS // 2
        return self._board(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move the paddle, then let the ball fall by one row."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), _COLUMNS - 1)
        self._row += 1
        down = self._row == _ROWS - 1
        reward = 0.0 if not down else 1.0 if self._paddle == self._column else -1.0
        return self._board(), reward, down, False, {}

    def render(self) -> np.ndarray:
        """Return a picture of the board, uint8 [height, width, 3]."""
        picture = np.full((_ROWS * _SQUARE, _COLUMNS * _SQUARE, 3), _LINE, np.uint8)
        for row in range(_ROWS):
            for column in range(_COLUMNS):
                ball = (row, column) == (self._row, self._column)
                paddle = (row, column) == (_ROWS - 1, self._paddle)
                y, x = row * _SQUARE, column * _SQUARE
                colour = _PADDLE if paddle else _BALL if ball else _DARK
                picture[y + 1 : y + _SQUARE - 1, x + 1 : x + _SQUARE - 1] = colour
                if paddle and ball:
                    picture[y + 8 : y + _SQUARE - 8, x + 8 : x + _SQUARE - 8] = _BALL
        return picture

    def get_action_meanings(self) -> list[str]:
        """Return the actions' names."""
        return ["left", "stay", "right"]

    def _board(self) -> np.ndarray:
        board = np.zeros((_ROWS, _COLUMNS), np.float32)
        board[self._row, self._column] = board[-1, self._paddle] = 1
        return board


class Memory(gymnasium.Env):
    """A memory task: the first observation shows a cue that the agent must repeat nine steps later.

        entry  0        1 .. 7    8         9          10
               cue      blank     "clear"   "answer"   blank, terminated; reward 1 or 0

    The reward is 1 if the action at "answer" equals the cue (0 or 1) and the action at "clear" was
    0. The second condition is there because networks also read their last action: a network without
    memory could pass the cue on from action to action. An agent that takes action 0 at "clear" has
    lost it, so without memory the mean return is at most 0.5.

    Observations float32 [4], one-hot or zeros: cue 0, cue 1, clear, answer. Actions: 0, 1.
    """

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
        picture = np.full((_FIELD + 16, len(_SIGNS) * _FIELD, 3), _DARK, np.uint8)
        shown = self._cue if self._time == 0 else _SHOWN.get(self._time)
        for sign, colour in enumerate(_SIGNS):
            left = sign * _FIELD
            picture[8 : _FIELD - 8, left + 8 : left + _FIELD - 8] = (
                colour if sign == shown else _GREY
            )
        past = 8 + (picture.shape[1] - 16) * self._time // (_ANSWER + 1)
        picture[_FIELD : _FIELD + 8, 8:-8] = _GREY
        picture[_FIELD : _FIELD + 8, 8:past] = _PAST
        return picture

    def _show(self, sign: int | None = None) -> np.ndarray:
        observation = np.zeros(4, np.float32)
        if sign is not None:
            observation[sign] = 1
        return observation


class TMaze(gymnasium.Env):
    """A T-maze: a sign at the start of a corridor says which way to turn at its end.

        start                 corridor                 junction
        sign left or right    nothing, `length` - 1    turn left or right: reward 1 or 0, terminated

    The agent walks itself. A turn within the corridor, or a walk ahead at the junction, is a bump:
    it costs 0.05 and changes nothing. So the last action before the junction is always the same,
    and a network without memory, which reads its last action, too, has a mean return of at most
    0.5. Observations float32 [4], one-hot: sign left, sign right, corridor, junction.

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
        width = (self._length + 1) * _PLACE
        picture = np.full((3 * _HIGH, width, 3), _DARK, np.uint8)
        picture[_HIGH : 2 * _HIGH, :-_PLACE] = picture[:, -_PLACE:] = _GREY
        side = slice(0, _HIGH // 3) if self._sign == _LEFT else slice(-_HIGH // 3, None)
        picture[_HIGH : 2 * _HIGH][side, :_PLACE] = _ORANGE
        left = self._place * _PLACE
        picture[_HIGH + 8 : 2 * _HIGH - 8, left + 1 : left + _PLACE - 1] = _BLUE
        return picture

    def get_action_meanings(self) -> list[str]:
        """Return the actions' names."""
        return ["ahead", "left", "right"]

    def _look(self) -> np.ndarray:
        observation = np.zeros(4, np.float32)
        shown = _JUNCTION if self._place == self._length else _CORRIDOR
        observation[self._sign if self._place == 0 else shown] = 1
        return observation


class CatchSuite(Suite):
    """The suite of one game, whose name is that of its level."""

    game: Callable[..., Any] = Catch
    reward_thresholds: Mapping[str, float] = {"": 0.9}

    def maker(self, level: str) -> Callable[..., Any] | None:
        """Return the game's class."""
        return None if level else type(self).game


class MemorySuite(CatchSuite):
    """The suite of the memory task."""

    game, reward_thresholds = Memory, {"": 0.95}


class TMazeSuite(CatchSuite):
    """The suite of the T-maze."""

    game, reward_thresholds = TMaze, {"": 0.95}


for _id, _suite in (
    ("impala_mm/Catch-v0", CatchSuite),
    ("impala_mm/Memory-v0", MemorySuite),
    ("impala_mm/TMaze-v0", TMazeSuite),
):
    _place = f"{__name__}:{_suite.game.__name__}"
    gymnasium.register(_id, _place, reward_threshold=_suite.reward_thresholds[""])
