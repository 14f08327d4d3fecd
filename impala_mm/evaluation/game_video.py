"""A video of one complete game: a viewer that writes the frames that it is shown.

record_game(impala_mm.load_policy("runs/c"), "catch", Path("catch.mp4"), overlay=True)
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.environments import from_flags
from impala_mm.environments.action_names import action_names
from impala_mm.evaluation import games
from impala_mm.evaluation.overlay import overlay
from impala_mm.evaluation.video_writer import VideoFailed, VideoWriter
from impala_mm.evaluation.viewers import GameFrame
from impala_mm.policy.core import PolicyCore

_MOST_NUMBERS = 6  # of an action that the strip has room for


class GameVideo:
    """A video of the first game that is played to its end; without one no file remains."""

    def __init__(
        self,
        path: Path,
        rate: float,
        name_of: Callable[[Any], str],
        needs_policy_output: bool = False,
        failed: Callable[[str], None] | None = None,
    ):
        """Prepare a video of `rate` pictures per second.

        `name_of` returns a text for an action; `needs_policy_output`: whether action, value and
        probabilities are drawn below each picture. `failed` is told why a video that has begun
        cannot be finished, and the games go on; without it VideoFailed is raised.
        """
        self._path, self._rate, self._name_of, self._failed = path, rate, name_of, failed
        self._bars = 0  # probabilities below the pictures
        self.needs_policy_output = needs_policy_output
        self._writer, self._game = VideoWriter(path, rate), 0
        self._begun = self._ended = False

    def show(self, frame: GameFrame) -> None:
        """Write the next frame, unless the video has ended."""
        if self._ended:
            return
        picture = self._draw(frame) if self.needs_policy_output else frame.picture
        self._ended = frame.action is None
        # The last picture is shown for a second.
        times = max(1, round(self._rate)) if self._ended else 1
        with self._failing():
            if frame.game != self._game:  # the previous game broke off
                self._writer.discard()
                self._writer, self._game = VideoWriter(self._path, self._rate), frame.game
            for _ in range(times):
                self._writer.add(picture)
            self._begun = True

    def close(self) -> None:
        """Finish the file, or leave none if no game has ended."""
        if not self._ended:
            self._writer.discard()
            return
        with self._failing():
            self._writer.close()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Tell why a video that has begun fails, and write no more of it."""
        try:
            yield
        except VideoFailed as error:
            if not self._failed or not self._begun:
                raise
            self._writer.discard()
            self._ended = True
            self._failed(str(error))

    def _draw(self, frame: GameFrame) -> np.ndarray:
        """Return the picture with action, value, return and probabilities below it."""
        if frame.action is None:
            nothing = np.zeros(self._bars) if self._bars else None
            return overlay(
                frame.picture, "none: the game is over", 0.0, frame.episode_return, nothing
            )
        assert frame.value is not None
        name, chosen = self._name_of(frame.action), None
        if frame.policy is not None:
            self._bars, chosen = len(frame.policy), int(frame.action)
        return overlay(frame.picture, name, frame.value, frame.episode_return, frame.policy, chosen)


def action_namer(policy: PolicyCore, level_name: str) -> Callable[[Any], str]:
    """Return a function that names an action of the policy, a nest of [...], on a level.

    A Discrete action has its name, others are shown as the environment takes them.
    """
    options, actions = from_flags.environment_options(policy.config), policy.spec.actions
    names = action_names(level_name, actions, **options)

    def name_of(action: Any) -> str:
        if names:
            return names[action]
        one = tf.nest.map_structure(lambda part: np.asarray(part)[None], action)
        return _short_text(actions.to_environments(one)[0])

    return name_of


def _short_text(action: Any) -> str:
    """Return an environment's action in a line that is short enough for the strip."""
    parts = tf.nest.flatten(action)
    numbers = [f"{number:.3g}" for part in parts for number in np.ravel(part).tolist()]
    more = len(numbers) > _MOST_NUMBERS
    return ", ".join(numbers[:_MOST_NUMBERS]) + (", ..." if more else "")


def record_game(
    policy: PolicyCore,
    level_name: str,
    path: Path,
    deterministic: bool = False,
    overlay: bool = False,
    seed: int = 1,
) -> games.Evaluation:
    """Play one game and write a video of it to `path`.

    Raises BadLevel where the level cannot be drawn, Unplayable, and VideoFailed.
    """
    name_of = action_namer(policy, level_name)
    return games.evaluate_level(
        *(policy, level_name, 1, 1),
        deterministic=deterministic,
        seed=seed,
        viewers=lambda playing: [GameVideo(path, playing.picture_rate, name_of, overlay)],
    )
