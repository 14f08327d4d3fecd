"""Viewers of the games of copy 0 while they are played: a window, and a video of one game.

record_game(impala_mm.load_policy("runs/c"), "catch", Path("catch.mp4"), overlay=True)
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.config import flags
from impala_mm.environments import from_flags
from impala_mm.environments.make import action_names
from impala_mm.evaluation import games
from impala_mm.evaluation.games import GameFrame
from impala_mm.evaluation.video_writer import VideoFailed, VideoWriter, enlarge
from impala_mm.policy.core import PolicyCore

_MOST_NUMBERS = 6  # of an action that the strip has room for


class Window:
    """A window that shows all games at normal speed; closing it does not end the games."""

    needs_policy_output = False

    def __init__(self, title: str, rate: float):
        """Prepare a window that shows `rate` pictures per second."""
        try:
            import pygame  # noqa: PLC0415
        except ImportError:
            flags.refuse("--render needs pygame: pip install pygame-ce")
        self._pygame, self._title, self._rate = pygame, title, rate
        self._screen: Any = None
        self._closed = False

    def show(self, frame: GameFrame) -> None:
        """Draw an observation and wait until it was shown for its time."""
        pygame = self._pygame
        if self._closed:
            return
        if self._screen is None:
            self._open(frame.picture)
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            self.close()
            return
        surface = pygame.surfarray.make_surface(frame.picture.swapaxes(0, 1))
        self._screen.blit(pygame.transform.scale(surface, self._screen.get_size()), (0, 0))
        pygame.display.set_caption(f"{self._title}: return {frame.episode_return:.2f}")
        pygame.display.flip()
        self._clock.tick(self._rate)

    def close(self) -> None:
        """Close the window."""
        self._closed = True
        self._pygame.display.quit()

    def _open(self, picture: np.ndarray) -> None:
        pygame = self._pygame
        height, width = picture.shape[:2]
        times = max(1, 480 // height)
        try:
            pygame.display.init()
            self._screen = pygame.display.set_mode((width * times, height * times))
        except pygame.error as error:
            flags.refuse(f"--render: no window can be opened on this machine ({error})")
        self._clock = pygame.time.Clock()


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
            return draw_below(
                frame.picture, "none: the game is over", 0.0, frame.episode_return, nothing
            )
        assert frame.value is not None
        name, chosen = self._name_of(frame.action), None
        if frame.policy is not None:
            self._bars, chosen = len(frame.policy), int(frame.action)
        return draw_below(
            frame.picture, name, frame.value, frame.episode_return, frame.policy, chosen
        )


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
        policy,
        level_name,
        1,
        1,
        deterministic=deterministic,
        seed=seed,
        viewers=lambda playing: [GameVideo(path, playing.picture_rate, name_of, overlay)],
    )


_BACK, _DIM, _TEXT, _BAR, _CHOSEN = (
    (20, 24, 33),
    (44, 51, 68),
    (235, 238, 245),
    (110, 130, 165),
    (245, 158, 66),
)
_NARROWEST = 320  # width in pixels that the text needs
_MARGIN = 8
_LINE, _BARS = 22, 34  # heights in pixels


def draw_below(
    frame: np.ndarray,  # uint8 [H, W, 3], RGB
    action: str,  # its name
    value: float,
    episode_return: float,
    policy: np.ndarray | None,  # [A]: probabilities, drawn as bars unless None
    chosen: int | None = None,  # index of the action among them
) -> np.ndarray:
    """Return the picture, enlarged if small, with a strip of text and bars below; [H', W', 3]."""
    picture = enlarge(frame)
    height, width = picture.shape[:2]
    wide = max(width, _NARROWEST)
    below = 2 * _LINE + _MARGIN + (0 if policy is None else _BARS + _MARGIN)
    canvas = np.full((height + below, wide, 3), _BACK, np.uint8)
    left = (wide - width) // 2
    canvas[:height, left : left + width] = picture
    _write(canvas, _MARGIN, height + _LINE, f"action {action}")
    _write(canvas, _MARGIN, height + 2 * _LINE, f"value {value:.2f}")
    _write(canvas, wide // 2, height + 2 * _LINE, f"return {episode_return:,.10g}")
    if policy is not None:
        _draw_bars(
            canvas[height + 2 * _LINE + _MARGIN : -_MARGIN, _MARGIN:-_MARGIN], policy, chosen
        )
    return canvas


def _write(picture: np.ndarray, x: int, baseline: int, text: str) -> None:
    import cv2  # noqa: PLC0415

    cv2.putText(picture, text, (x, baseline), cv2.FONT_HERSHEY_SIMPLEX, 0.5, _TEXT, 1, cv2.LINE_AA)


def _draw_bars(area: np.ndarray, policy: np.ndarray, chosen: int | None) -> None:
    """Draw one column for each action, filled from below up to its probability."""
    height, width = area.shape[:2]
    gap = 2 if width >= 6 * len(policy) else 0
    edges = np.linspace(0, width + gap, len(policy) + 1).astype(int)
    for i, (begin, end) in enumerate(itertools.pairwise(edges.tolist())):
        full = round(height * float(np.clip(policy[i], 0, 1)))
        area[:, begin : end - gap] = _DIM
        area[height - full :, begin : end - gap] = _CHOSEN if i == chosen else _BAR
