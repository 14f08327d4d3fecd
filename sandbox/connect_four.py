"""A rule for Connect Four: `--opponents=self:0.3,past:0.2,sandbox.connect_four:take_wins:0.5`."""

import numpy as np

_ROWS, _COLUMNS = 6, 7
_DIRECTIONS = (0, 1), (1, 0), (1, 1), (1, -1)
# The cells of each line of four, [69, 4].
_LINES = np.array([
    [(row + i * down) * _COLUMNS + column + i * right for i in range(4)]
    for row in range(_ROWS)
    for column in range(_COLUMNS)
    for down, right in _DIRECTIONS
    if row + 3 * down < _ROWS and 0 <= column + 3 * right < _COLUMNS
])  # fmt: skip


def take_wins(observations: np.ndarray) -> np.ndarray:
    """Return probabilities of columns [N, 7]: those that win at once, or else all that are free.

    Observations [N, 6, 7, 2] have the player's own pieces and the other's.
    """
    own = observations[..., 0].reshape(-1, _ROWS * _COLUMNS) > 0
    free = ~observations.astype(bool).any(-1)
    chosen = free[:, 0].astype(float)
    lowest = np.maximum(free.sum(1) - 1, 0) * _COLUMNS + np.arange(_COLUMNS)  # cells [N, 7]
    after = np.repeat(own[:, np.newaxis], _COLUMNS, 1)  # one more piece in each column
    np.put_along_axis(after, lowest[..., np.newaxis], values=True, axis=2)
    wins = chosen * after[..., _LINES].all(-1).any(-1)
    chosen = np.where(wins.any(1, keepdims=True), wins, chosen)
    return chosen / chosen.sum(1, keepdims=True)
