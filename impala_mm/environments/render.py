"""Pictures of environments: whether they draw their own, and pictures of observations otherwise."""

from collections.abc import Collection
from typing import Any

import gymnasium
import numpy as np

from impala_mm.environments.types import BadLevel

_LEAST = 160  # height in pixels to which smaller pictures are enlarged


def can_render(entry_point: Any) -> bool:
    """Return whether an environment's class declares that it draws pictures.

    `entry_point` is the class, or its name in a registry of gymnasium or classic gym.
    """
    if isinstance(entry_point, str):
        entry_point = gymnasium.envs.registration.load_env_creator(entry_point)
    return "rgb_array" in declared_modes(entry_point)


def declared_modes(maker: Any) -> Collection[str]:
    """Return the render modes that a class says it has; none if it says nothing."""
    declared = getattr(maker, "metadata", {})
    # The metadata of a class of wrappers is a property, known only once there is an environment.
    return declared.get("render_modes", ()) if isinstance(declared, dict) else ()


def picture_in_colours(level_name: str, drawn: np.ndarray) -> np.ndarray:
    """Return a picture that an environment drew as uint8 [height, width, 3].

    It may be grey, and have an alpha channel, which is left out; raise BadLevel for other shapes.
    """
    picture = drawn[..., None] if drawn.ndim == 2 else drawn
    if picture.ndim != 3 or picture.shape[2] not in {1, 2, 3, 4}:
        raise BadLevel(
            f"{level_name} draws pictures of shape {list(drawn.shape)}: its render method must "
            f"return [height, width, 3]"
        )
    channels = [0, 0, 0] if picture.shape[2] < 3 else [0, 1, 2]
    return picture[..., channels].astype(np.uint8)


def picture_of_observation(level_name: str, observation: np.ndarray) -> np.ndarray:
    """Return an image observation as uint8 [height, width, 3]; raise BadLevel if it is no image.

    Values of other types than uint8 are scaled so that the smallest is black and the largest white.
    Of an image whose channels are not three colours, the last channel is shown.
    """
    image = observation[..., None] if observation.ndim == 2 else observation
    if image.ndim != 3:
        raise BadLevel(
            f"{level_name} draws no pictures, and its observations {list(observation.shape)} are "
            f"no images: give it a render method and the render mode rgb_array"
        )
    if image.shape[2] != 3:
        image = np.repeat(image[..., -1:], 3, axis=2)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = ((image - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)
    times = -(-_LEAST // image.shape[0])
    return image.repeat(times, axis=0).repeat(times, axis=1)
