"""Connect Four: observations that show threats, and opponents that take their wins and forks.

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


def forks(boards: np.ndarray) -> np.ndarray:
    """Return, for boards [N, 6, 7, 2], where each player's piece makes wins that cannot be blocked.

    After it there are two columns that win, or one whose block makes the cell above it win, and the
    other player does not win first.
    """
    rows, free = _landing(boards)
    game, player, column = np.ix_(range(len(boards)), range(2), range(_COLUMNS))
    after = np.tile(boards[:, np.newaxis, np.newaxis], (1, 2, _COLUMNS, 1, 1, 1))
    after[game, player, column, rows[:, np.newaxis], column, player] = 1
    after = after.reshape(-1, *boards.shape[1:])
    cells = threats(after)
    wins = _columns(cells, after)
    above = _columns(np.pad(cells, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1], after)
    # Of each game, player and column, the wins of each column and player, [N, 2, 7, 7, 2].
    wins, above = (each.reshape(-1, 2, _COLUMNS, _COLUMNS, 2) for each in (wins, above))
    own, other = (wins[:, [0, 1], :, :, players] for players in ([0, 1], [1, 0]))  # [2, N, 7, 7]
    stacked = (own & above[:, [0, 1], :, :, [0, 1]]).any(-1)
    made = ((own.sum(-1) > 1) | stacked) & ~other.any(-1) & free  # [2, N, 7]
    found = np.zeros(boards.shape, bool)
    found[game, rows[:, np.newaxis], column, player] = made.swapaxes(0, 1)
    return found


def _landing(boards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for boards [N, 6, 7, 2], the row of the next piece in each column, and the free ones.

    Both are [N, 7]; the row of a full column is 0.
    """
    empty = ~boards.any(-1)
    return np.maximum(empty.sum(1) - 1, 0), empty[:, 0]


def _columns(cells: np.ndarray, boards: np.ndarray) -> np.ndarray:
    """Return which columns' next piece takes one of these cells [N, 6, 7, 2]: bool [N, 7, 2]."""
    rows, free = _landing(boards)
    taken = np.take_along_axis(cells, rows[:, np.newaxis, :, np.newaxis], 1)[:, 0]
    return (taken > 0) & free[..., np.newaxis]


def take_wins(observations: np.ndarray) -> np.ndarray:
    """Return probabilities of columns [N, 7]: those that win at once, or else all that are free.

    The first two planes of observations [N, 6, 7, ...] are the player's own pieces and the other's.
    """
    boards = observations[..., :2]
    return _first_of(boards, threats(boards))


def take_forks(observations: np.ndarray) -> np.ndarray:
    """Return probabilities of columns as `take_wins` does, with forks after wins."""
    boards = observations[..., :2]
    return _first_of(boards, threats(boards), forks(boards))


def _first_of(boards: np.ndarray, *cells: np.ndarray) -> np.ndarray:
    """Return even probabilities [N, 7] of the columns that take the player's first cells, or all.

    Each of `cells` [N, 6, 7, 2] counts where those before it have none that a piece can take.
    """
    chosen = _landing(boards)[1]
    for each in reversed(cells):
        taken = _columns(each, boards)[..., 0]
        chosen = np.where(taken.any(1, keepdims=True), taken, chosen)
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
