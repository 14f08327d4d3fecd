"""A video of one complete game: a viewer that writes the frames that it is shown.

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
    """A video of the first game that is played to its end; without one no file remains."""

    def __init__(
        self, path: Path, rate: float, actions: Sequence[str], needs_policy_output: bool = False
    ):
        """Prepare a video of `rate` pictures per second.

        `actions`: their names; `needs_policy_output`: whether action, value and probabilities are
        drawn below each picture.
        """
        self._path, self._rate, self._actions = path, rate, actions
        self.needs_policy_output = needs_policy_output
        self._writer, self._game, self._ended = VideoWriter(path, rate), 0, False

    def show(self, frame: GameFrame) -> None:
        """Write the next frame, unless the video has ended."""
        if self._ended:
            return
        if frame.game != self._game:  # the previous game broke off
            self._writer.discard()
            self._writer, self._game = VideoWriter(self._path, self._rate), frame.game
        picture = self._draw(frame) if self.needs_policy_output else frame.picture
        self._ended = frame.action is None
        for _ in range(
            max(1, round(self._rate)) if self._ended else 1
        ):  # the last picture is shown for a second
            self._writer.add(picture)

    def close(self) -> None:
        """Finish the file, or leave none if no game has ended."""
        if self._ended:
            self._writer.close()
        else:
            self._writer.discard()

    def _draw(self, frame: GameFrame) -> np.ndarray:
        """Return the picture with action, value, return and probabilities below it."""
        if frame.action is None:
            nothing = np.zeros(len(self._actions))
            return overlay(
                frame.picture, "none: the game is over", 0.0, frame.episode_return, nothing
            )
        assert frame.value is not None
        name = self._actions[frame.action]
        known = (frame.episode_return, frame.policy, frame.action)
        return overlay(frame.picture, name, frame.value, *known)


def action_names_of(policy: Policy, level_name: str) -> list[str]:
    """Return the names of the policy's actions on a level."""
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
    """Play one game and write a video of it to `path`.

    Raises BadLevel where the level cannot be drawn, Unplayable, and VideoFailed.
    """
    names = action_names_of(policy, level_name)
    return games.evaluate_level(
        *(policy, level_name, 1, 1),
        deterministic=deterministic,
        seed=seed,
        viewers=lambda playing: [GameVideo(path, playing.picture_rate, names, overlay)],
    )
