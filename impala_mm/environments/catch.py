"""Catch, a small game for tests and first runs: the player moves a paddle under a falling ball."""

from typing import Any

import gymnasium
import numpy as np

_ROWS, _COLUMNS = 10, 5
_CELL = 32  # pixels of the picture, for each cell of the board
_DARK, _LINE, _BALL, _PADDLE = (20, 24, 33), (36, 42, 56), (245, 158, 66), (92, 170, 245)


class Catch(gymnasium.Env):
    """A board of zeros with a 1 for the ball and one for the paddle. Actions: left, stay, right.

    The ball starts in a random column of the top row, the paddle in the middle of the bottom row.
    After nine steps the ball is in the bottom row and the episode ends: with reward 1 if the paddle
    is in the same column, otherwise with -1. A random policy has a mean return of -0.6.
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
        picture = np.full((_ROWS * _CELL, _COLUMNS * _CELL, 3), _LINE, np.uint8)
        for row in range(_ROWS):
            for column in range(_COLUMNS):
                ball = (row, column) == (self._row, self._column)
                paddle = (row, column) == (_ROWS - 1, self._paddle)
                y, x = row * _CELL, column * _CELL
                colour = _PADDLE if paddle else _BALL if ball else _DARK
                picture[y + 1 : y + _CELL - 1, x + 1 : x + _CELL - 1] = colour
                if paddle and ball:
                    picture[y + 8 : y + _CELL - 8, x + 8 : x + _CELL - 8] = _BALL
        return picture

    def get_action_meanings(self) -> list[str]:
        """Return the actions' names."""
        return ["left", "stay", "right"]

    def _board(self) -> np.ndarray:
        board = np.zeros((_ROWS, _COLUMNS), np.float32)
        board[self._row, self._column] = board[-1, self._paddle] = 1
        return board
