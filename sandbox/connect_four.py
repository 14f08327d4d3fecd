"""Connect Four: observations that show which moves win or lose, and an opponent that takes wins.

`--env_wrappers=sandbox.connect_four:show_tactics`
`--opponents=self:0.5,sandbox.connect_four:take_wins:0.5`, which needs that wrapper

Cells are the bits of a number: column by column, from below, with an empty row on top.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

_ROWS, _COLUMNS = 6, 7
_HEIGHT = _ROWS + 1
_BITS = 1 << (_HEIGHT * np.arange(_COLUMNS) + np.arange(_ROWS)[::-1, np.newaxis])  # [6, 7]
_CELLS = int(_BITS.sum())
_BOTTOM = int(_BITS[-1].sum())


def threats(own: int, other: int) -> int:
    """Return the empty cells with which the player of `own` has four in a line."""
    found = own << 1 & own << 2 & own << 3
    for step in (_HEIGHT - 1, _HEIGHT, _HEIGHT + 1):
        before, after = own >> step, own << step
        found |= after & own << 2 * step & (own << 3 * step | before)
        found |= before & own >> 2 * step & (own >> 3 * step | after)
    return found & _CELLS & ~(own | other)


def winning(own: int, other: int) -> Iterator[int]:
    """Return the moves that win at once or, without any, those that win by threats.

    Each of these must be answered and leaves the other player no win at once.
    """
    landing = _landing(own | other)
    at_once = threats(own, other) & landing
    return (move for move in _each(at_once or landing) if at_once or _forces(own | move, other))


def losing(own: int, other: int) -> Iterator[int]:
    """Return the moves after which the other player has one that wins."""
    moves = _landing(own | other) & ~threats(own, other)
    return (move for move in _each(moves) if any(winning(other, own | move)))


def _forces(own: int, other: int) -> bool:
    """Return whether the player of `own`, who has just moved, wins by threats."""
    landing = _landing(own | other)
    cells = threats(own, other) & landing
    if not cells or threats(other, own) & landing:
        return False
    answer = cells & -cells  # it blocks one of them
    return any(winning(own, other | answer))


def _landing(pieces: int) -> int:
    """Return the cells that the next piece may take."""
    return pieces + _BOTTOM & _CELLS


def _each(cells: int) -> Iterator[int]:
    while cells:
        yield cells & -cells
        cells &= cells - 1


def tactics(board: np.ndarray) -> np.ndarray:
    """Return planes [6, 7, 4] for a board [6, 7, 2] of the player's own pieces and the other's.

    They are the threats of both, the moves that win and those that lose.
    """
    own, other = (int(_BITS[board[..., player] > 0].sum()) for player in range(2))
    moves = (sum(chosen(own, other)) for chosen in (winning, losing))
    cells = threats(own, other), threats(other, own), *moves
    return (_BITS[..., np.newaxis] & cells > 0).astype(board.dtype)


def take_wins(observations: np.ndarray) -> np.ndarray:
    """Return probabilities of columns [N, 7]: those that win, or else all that are free."""
    wins = observations[..., 4].max(1)
    free = ~observations[:, 0, :, :2].any(-1)
    chosen = np.where(wins.any(1, keepdims=True), wins, free).astype(float)
    return chosen / chosen.sum(1, keepdims=True)


def show_tactics(game: Any) -> Any:
    """Return PettingZoo's Connect Four, with the planes of `tactics` behind those of the pieces."""
    from pettingzoo.utils import BaseWrapper  # noqa: PLC0415 - the rest needs NumPy alone

    class ShowTactics(BaseWrapper):
        def observation_space(self, agent: str) -> spaces.Dict:
            parts = dict(super().observation_space(agent))
            parts["observation"] = spaces.Box(0, 1, (_ROWS, _COLUMNS, 6), np.int8)
            return spaces.Dict(parts)

        def observe(self, agent: str) -> dict[str, np.ndarray]:
            seen = super().observe(agent)
            board = seen["observation"]
            return seen | {"observation": np.concatenate([board, tactics(board)], -1)}

    return ShowTactics(game)
