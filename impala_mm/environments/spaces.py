"""Conversion of an environment's spaces: `actions.ActionSpec`, and observations of one shape.

Box observations of uint8 stay uint8; all others become float32. Discrete observations become
one-hot vectors of float32.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from impala_mm.environments import action_parts
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.messages import one_line
from impala_mm.environments.types import BadLevel


class SpaceConversion(NamedTuple):
    """The conversion of actions and observations for one environment."""

    actions: ActionSpec
    raw_shape: tuple[int, ...]  # of an observation as the environment returns it
    shape: tuple[int, ...]  # of a converted observation
    dtype: np.dtype  # of a converted observation: uint8 or float32
    convert: Callable[[np.ndarray], np.ndarray] | None  # from raw_shape to shape


def read_spaces(level_name: str, environment: Any, width: int, height: int) -> SpaceConversion:
    """Return the conversion for an environment; `width` and `height` are those of `Options`.

    BadLevel is raised for spaces that are not supported.
    """
    taken, observations = read_actions(level_name, environment), environment.observation_space
    if isinstance(observations, Discrete):
        n = int(observations.n)
        if width or height:
            _refuse_resizing(level_name, (n,))
        convert = _one_hot(n, int(observations.start))
        return SpaceConversion(taken, (), (n,), np.dtype(np.float32), convert)
    if not isinstance(observations, Box) or observations.dtype.kind not in "biuf":
        raise BadLevel(
            f"{level_name} observes {one_line(observations)}: only Box observations of numbers "
            "and Discrete ones are supported; gymnasium.wrappers.FlattenObservation makes a Box"
        )
    raw = tuple(observations.shape)
    dtype = observations.dtype if observations.dtype == np.uint8 else np.dtype(np.float32)
    if not width and not height:
        return SpaceConversion(taken, raw, raw, dtype, None)
    if len(raw) not in {2, 3}:
        _refuse_resizing(level_name, raw)
    shape = (height or raw[0], width or raw[1], *raw[2:])
    return SpaceConversion(taken, raw, shape, dtype, _resize(shape, dtype))


def read_actions(level_name: str, environment: Any) -> ActionSpec:
    """Return an environment's actions; raise BadLevel for a space that is not supported."""

    def read(space: Any) -> Any:
        if isinstance(space, Discrete):
            return action_parts.Discrete(int(space.n), int(space.start))
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            numbers, starts = (tuple(np.ravel(each).tolist()) for each in (space.nvec, space.start))
            return action_parts.MultiDiscrete(space.nvec.shape, numbers, starts, space.dtype.name)
        if isinstance(space, gymnasium.spaces.MultiBinary):
            return action_parts.MultiBinary(tuple(space.shape))
        if isinstance(space, Box) and space.dtype.kind in "iuf":
            low, high = (tuple(np.ravel(each).tolist()) for each in (space.low, space.high))
            return action_parts.Box(tuple(space.shape), low, high, space.dtype.name)
        if isinstance(space, gymnasium.spaces.Dict) and space.spaces:
            return {key: read(part) for key, part in space.spaces.items()}
        if isinstance(space, gymnasium.spaces.Tuple) and space.spaces:
            return tuple(read(part) for part in space.spaces)
        whole = environment.action_space
        of = "" if space is whole else f", with {one_line(space)} in it"
        raise BadLevel(
            f"{level_name} takes actions from {one_line(whole)}{of}: only Discrete, MultiDiscrete, "
            "MultiBinary and Box actions are supported, and Dict and Tuple of these; a "
            "gymnasium.ActionWrapper of yours can make one of them into what the level takes"
        )

    return ActionSpec(read(environment.action_space))


def _one_hot(n: int, start: int) -> Callable[[np.ndarray], np.ndarray]:
    def convert(observation: np.ndarray) -> np.ndarray:
        index = int(observation) - start
        if not 0 <= index < n:
            raise ValueError(f"observation {observation} is not one of {n} from {start} on")
        row = np.zeros(n, np.float32)
        row[index] = 1
        return row

    return convert


def _resize(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that resizes images [height, width] or [height, width, C] to `shape`."""
    import cv2  # noqa: PLC0415

    cv2.setNumThreads(1)  # the other cores are for other actors

    def convert(image: np.ndarray) -> np.ndarray:
        image = image.astype(dtype, copy=False).reshape(*image.shape[:2], -1)
        few = [  # OpenCV resizes at most 4 channels at once, and drops the axis of a single one
            cv2.resize(
                np.ascontiguousarray(image[..., c : c + 4]),
                shape[1::-1],
                interpolation=cv2.INTER_AREA,
            ).reshape(*shape[:2], -1)
            for c in range(0, image.shape[2], 4)
        ]
        return np.concatenate(few, axis=2).reshape(shape)

    return convert


def _refuse_resizing(level_name: str, shape: tuple[int, ...]) -> None:
    raise BadLevel(
        f"width and height resize images, and {level_name} observes {list(shape)}: leave them 0"
    )
