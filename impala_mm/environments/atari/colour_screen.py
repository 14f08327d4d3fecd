"""The screen of an Atari game in colour, for videos and windows; environment 0 only.

The C++ vector returns preprocessed pictures only and gives no access to the emulator's screen. So a
second vector plays the game of environment 0 again: the same seed and the same actions give the
same game, sticky actions and no-ops included, and its pictures are the whole screen.
"""

from typing import Any

import numpy as np

from impala_mm.environments.atari import vector
from impala_mm.environments.atari.games import Game

_SCREEN = {"img_height": 210, "img_width": 160, "grayscale": False}


class ColourScreenVector:
    """A vector with the interface of `AtariVectorEnv` and the `picture` of environment 0."""

    def __init__(self, game: Game, num_envs: int):
        self._vector = vector.open_vector(game, num_envs)
        self._again = vector.open_vector(game, 1, **_SCREEN)
        self.picture = np.zeros((210, 160, 3), np.uint8)

    def reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all games, or those that `options["reset_mask"]` selects."""
        answer = self._vector.reset(seed=seed, options=options)
        mask = options["reset_mask"][:1] if options else None
        if mask is None or mask[0]:
            again = None if options is None else {"reset_mask": mask}
            pictures, info = self._again.reset(
                seed=None if seed is None else seed[:1], options=again
            )
            self._look(pictures, info, answer[1])
        return answer

    def step(self, actions: np.ndarray) -> Any:
        """Step all games."""
        answer = self._vector.step(actions)
        pictures, *_, info = self._again.step(actions[:1])
        self._look(pictures, info, answer[-1])
        return answer

    def _look(self, pictures: np.ndarray, info: dict[str, Any], theirs: dict[str, Any]) -> None:
        for name in ("frame_number", "episode_frame_number", "lives"):
            if info[name][0] != theirs[name][0]:
                raise RuntimeError(f"the game played again for its colours differs in its {name}")
        self.picture = pictures.reshape(210, 160, 3).copy()
