"""Conversion of an environment's spaces: its actions, and its observations."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from impala_mm.config.messages import join_lines
from impala_mm.environments import action_parts
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.goals import why_none
from impala_mm.environments.masks import MaskConversion, find_declared, without_mask
from impala_mm.environments.observations import ObservationConversion, read_observations
from impala_mm.environments.types import BadLevel


class SpaceConversion(NamedTuple):
    """The conversion of actions and observations for one environment."""

    actions: ActionSpec
    observation: ObservationConversion
    masks: MaskConversion | None = None  # None: the environment offers no masks
    without_goals: str = ""  # that of `EnvironmentSpec`


def read_spaces(
    level_name: str, environment: Any, width: int, height: int, converts: bool = True
) -> SpaceConversion:
    """Return the conversion for an environment.

    `width`, `height` and `converts` are those of `Options`, the last as convert_observations.
    Masks that the environment offers in an info are not known from its spaces: see `masks`.
    BadLevel is raised for spaces that are not supported.
    """
    actions = read_actions(level_name, environment)
    space = without_mask(environment.observation_space)
    observation = read_observations(level_name, space, width, height, converts)
    masks, without_goals = find_declared(environment, actions), why_none(environment, observation)
    return SpaceConversion(actions, observation, masks, without_goals)


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
        of = "" if space is whole else f", with {join_lines(space)} in it"
        raise BadLevel(
            f"{level_name} takes actions from {join_lines(whole)}{of}: only Discrete, "
            "MultiDiscrete, MultiBinary and Box actions are supported, and Dict and Tuple of "
            "these; a gymnasium.ActionWrapper of yours can make one of them into what the level "
            "takes"
        )

    return ActionSpec(read(environment.action_space))
