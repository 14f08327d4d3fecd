"""One whole game of an agent, as a video: an onlooker of `evaluation` that writes what it sees.

record_game(impala_mm.load_policy("runs/c"), "catch", Path("catch.mp4"), overlay=True)
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from impala_mm.environments import from_flags
from impala_mm.environments.action_names import action_names
from impala_mm.evaluation import games
from impala_mm.evaluation.overlay import overlay
from impala_mm.evaluation.video_writer import VideoWriter
from impala_mm.evaluation.viewers import GameFrame
from impala_mm.policy.policy import Policy


class GameVideo:
    """Of the first game that is played to its end; where there is none, no file is left."""

    def __init__(self, path: Path, rate: float, actions: Sequence[str], judges: bool = False):
        """`rate`: pictures a second; `actions`: their names; `judges`: what it thinks is shown."""
        self._path, self._rate, self._actions, self.judges = path, rate, actions, judges
        self._recorder, self._game, self._over = VideoWriter(path, rate), 0, False

    def see(self, sight: GameFrame) -> None:
        """The next frame, if the film goes on."""
        if self._over:
            return
        if sight.game != self._game:  # the one before broke
            self._recorder.discard()
            self._recorder, self._game = VideoWriter(self._path, self._rate), sight.game
        frame = self._drawn(sight) if self.judges else sight.picture
        self._over = sight.action is None
        for _ in range(max(1, round(self._rate)) if self._over else 1):  # a second of how it ended
            self._recorder.add(frame)

    def close(self) -> None:
        """There are no more."""
        if self._over:
            self._recorder.close()
        else:
            self._recorder.discard()

    def _drawn(self, sight: GameFrame) -> np.ndarray:
        """With action, value, return and probabilities below it."""
        if sight.action is None:
            nothing = np.zeros(len(self._actions))
            return overlay(sight.picture, "none: it is over", 0.0, sight.episode_return, nothing)
        assert sight.value is not None
        name = self._actions[sight.action]
        thought = (sight.episode_return, sight.policy, sight.action)
        return overlay(sight.picture, name, sight.value, *thought)


def action_names_of(policy: Policy, level_name: str) -> list[str]:
    """What the policy's actions are called there."""
    options = from_flags.environment_options(policy.config)
    return action_names(level_name, policy.spec.num_actions, **options)


def record_game(
    policy: Policy,
    level_name: str,
    path: Path,
    deterministic: bool = False,
    overlay: bool = False,
    seed: int = 1,
) -> games.Evaluation:
    """Plays one game and writes what it looks like to `path`.

    Raises environments.BadLevel where the level has no looks, evaluation.Unplayable, and
    video.Unrecordable.
    """
    names = action_names_of(policy, level_name)
    return games.evaluate_level(
        *(policy, level_name, 1, 1),
        deterministic=deterministic,
        seed=seed,
        onlookers=lambda playing: [GameVideo(path, playing.picture_rate, names, overlay)],
    )
