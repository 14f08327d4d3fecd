"""Atari's screen in colour, of environment 0, for videos and windows.

The C++ vector shows preprocessed pictures only, and an emulator's screen cannot be had from it. So
a second vector plays environment 0's game once more: the same seed and the same actions make the
same game, sticky actions and no-ops included, and its pictures are the whole screen.
"""

from typing import Any

import numpy as np

from impala_mm.environments.atari import vector
from impala_mm.environments.atari.games import Game

_SCREEN = {"img_height": 210, "img_width": 160, "grayscale": False}


class ColourScreenVector:
    """As `AtariVectorEnv` to those who call it, and with the picture of environment 0."""

    def __init__(self, game: Game, num_envs: int):
        self._vector = vector.open_vector(game, num_envs)
        self._again = vector.open_vector(game, 1, **_SCREEN)
        self.picture = np.zeros((210, 160, 3), np.uint8)

    def reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """All, or those of a mask."""
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
        """One step of each."""
        answer = self._vector.step(actions)
        pictures, *_, info = self._again.step(actions[:1])
        self._look(pictures, info, answer[-1])
        return answer

    def _look(self, pictures: np.ndarray, info: dict[str, Any], theirs: dict[str, Any]) -> None:
        for name in ("frame_number", "episode_frame_number", "lives"):
            if info[name][0] != theirs[name][0]:
                raise RuntimeError(f"the game in colour is another: {name} differs")
        self.picture = pictures.reshape(210, 160, 3).copy()
