"""Catch as a picture with a margin, for networks that read images: as a level, `PictureCatch`."""

import gymnasium
import numpy as np

from impala_mm.environments.small_games import Catch

_CELL, _MARGIN = 1, 2  # pixels


class PictureCatch(gymnasium.ObservationWrapper):
    """Catch, drawn in grey: shifts by up to the margin leave the board in sight."""

    def __init__(self, render_mode=None):
        super().__init__(Catch(render_mode))
        shape = [n * _CELL + 2 * _MARGIN for n in self.env.observation_space.shape]
        self.observation_space = gymnasium.spaces.Box(0, 255, (*shape, 1), np.uint8)

    def observation(self, observation):
        """Return the board as a picture."""
        large = np.kron(observation, np.full([_CELL, _CELL], 255, np.uint8))
        return np.pad(large, _MARGIN).astype(np.uint8)[..., None]
