"""Connect Four: an opponent that is a rule, and games that begin with random moves.

--opponents=self:0.3,past:0.2,sandbox.connect_four:take_wins:0.5
--env_wrappers=sandbox.connect_four:RandomOpening
"""

from typing import Any

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


class RandomOpening:
    """A game of turns in which up to `most` random moves, which do not end it, come first."""

    def __init__(self, env: Any, most: int = 20):
        """Wrap an environment of PettingZoo that shows masks in its observations."""
        self.env, self._most, self._random = env, most, np.random.default_rng()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Begin a game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.env.reset(seed=seed, options=options)
        for _ in range(self._random.integers(self._most + 1)):
            free = np.flatnonzero(self.env.last()[0]["action_mask"])
            self.env.step(self._random.choice(free))
            if any(self.env.terminations.values()):
                self.env.reset(options=options)
