"""Connect Four: observations that show threats, and an opponent that takes its wins.

`--env_wrappers=sandbox.connect_four:show_threats`
`--opponents=self:0.5,sandbox.connect_four:take_wins:0.5`
"""

from typing import Any

import numpy as np
from gymnasium import spaces

_ROWS, _COLUMNS = 6, 7
_DIRECTIONS = (0, 1), (1, 0), (1, 1), (1, -1)
# Whether a cell belongs to a line of four, [69, 42].
_LINES = np.array([
    np.isin(
        np.arange(_ROWS * _COLUMNS),
        [(row + i * down) * _COLUMNS + column + i * right for i in range(4)],
    )
    for row in range(_ROWS)
    for column in range(_COLUMNS)
    for down, right in _DIRECTIONS
    if row + 3 * down < _ROWS and 0 <= column + 3 * right < _COLUMNS
]).astype(np.float32)  # fmt: skip


def threats(boards: np.ndarray) -> np.ndarray:
    """Return, for boards [..., 6, 7, 2], the empty cells with which each player has four in a line.

    The two planes are the player's own pieces and the other's, and so are those of the result.
    """
    pieces = boards.reshape(-1, _ROWS * _COLUMNS, 2).astype(np.float32)
    in_line = _LINES @ pieces  # the pieces of each player in each line [N, 69, 2]
    misses_one = (in_line == 3) & (in_line[..., ::-1] == 0)
    cells = (_LINES.T @ misses_one > 0) & ~pieces.any(-1, keepdims=True)
    return cells.reshape(boards.shape).astype(boards.dtype)


def take_wins(observations: np.ndarray) -> np.ndarray:
    """Return probabilities of columns [N, 7]: those that win at once, or else all that are free.

    The first two planes of observations [N, 6, 7, ...] are the player's own pieces and the other's.
    """
    boards = observations[..., :2]
    empty = ~boards.any(-1)
    free = empty[:, 0].astype(float)  # columns [N, 7]
    landing = np.maximum(empty.sum(1) - 1, 0)  # the row of the next piece in each
    wins = free * np.take_along_axis(threats(boards)[..., 0], landing[:, np.newaxis], 1)[:, 0]
    chosen = np.where(wins.any(1, keepdims=True), wins, free)
    return chosen / chosen.sum(1, keepdims=True)


def show_threats(game: Any) -> Any:
    """Return PettingZoo's Connect Four, with the planes of `threats` behind those of the pieces."""
    from pettingzoo.utils import BaseWrapper  # noqa: PLC0415 - the rest needs NumPy alone

    class ShowThreats(BaseWrapper):
        def observation_space(self, agent: str) -> spaces.Dict:
            parts = dict(super().observation_space(agent))
            parts["observation"] = spaces.Box(0, 1, (_ROWS, _COLUMNS, 4), np.int8)
            return spaces.Dict(parts)

        def observe(self, agent: str) -> dict[str, np.ndarray]:
            seen = super().observe(agent)
            board = seen["observation"]
            return seen | {"observation": np.concatenate([board, threats(board)], -1)}

    return ShowThreats(game)
