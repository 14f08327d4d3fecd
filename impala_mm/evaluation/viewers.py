"""Viewers of the games of copy 0 while they are played: a window, or a video (`game_video`)."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from impala_mm.config import flags


class GameFrame(NamedTuple):
    """One observation as it is shown to viewers."""

    picture: np.ndarray  # uint8 [height, width, 3]
    game: int  # 0 for the first
    action: Any  # a nest of [...], chosen after it; None at a game's end
    reward: float  # raw reward that came with it
    episode_return: float  # raw return of the game so far
    # The policy's value estimate, if a viewer needs it: the action's if the algorithm computes it,
    # else that of the observation.
    value: float | None = None
    policy: np.ndarray | None = None  # float32 [A]: probabilities of Discrete actions


class Viewer(Protocol):
    """A viewer, which is shown each observation of copy 0 in turn."""

    needs_policy_output: bool  # whether it needs value and policy, which cost time

    def show(self, frame: GameFrame) -> None:
        """Show the next observation."""

    def close(self) -> None:
        """End the show; there are no more observations."""


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
