"""Conversion of an environment's spaces: its actions, its observations, and goals among these."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from impala_mm.config.messages import describe_error, join_lines
from impala_mm.environments import action_parts
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.gym_adapter import find_method
from impala_mm.environments.masks import MaskConversion, find_declared, without_mask
from impala_mm.environments.observations import (
    ObservationConversion,
    PartConversion,
    read_observations,
)
from impala_mm.environments.types import BadLevel

# Goals of an environment, as gymnasium-robotics' GoalEnv has them, for hindsight (--her_ratio): it
# observes a Dict with these keys, and says by compute_reward(achieved_goal, desired_goal, info)
# what a step would have been worth under another goal; by compute_terminated, if it has that,
# whether the episode would have ended. The info is an empty dict.
KEYS = ("observation", "achieved_goal", "desired_goal")
_REWARD, _END = "compute_reward", "compute_terminated"


class SpaceConversion(NamedTuple):
    """The conversion of actions and observations for one environment."""

    actions: ActionSpec
    observation: ObservationConversion
    masks: MaskConversion | None = None  # None: the environment offers no masks
    note: str = ""  # how a vector is played, for the user: follows the level's name
    without_goals: str = ""  # that of `EnvironmentSpec`, as are the following
    agents: int = 1
    seats: int = 1
    is_parallel: bool = False  # whether agents act at the same time


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
    masks, without_goals = (
        find_declared(environment, actions),
        reason_without_goals(environment, observation),
    )
    return SpaceConversion(actions, observation, masks, without_goals=without_goals)


def read_actions(level_name: str, environment: Any) -> ActionSpec:
    """Return an environment's actions; raise BadLevel for a space that is not supported."""

    def read(space: Any) -> Any:
        if isinstance(space, Discrete):
            return action_parts.Discrete(int(space.n), int(space.start))
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            numbers, starts = (tuple(np.ravel(x).tolist()) for x in (space.nvec, space.start))
            return action_parts.MultiDiscrete(space.nvec.shape, numbers, starts, space.dtype.name)
        if isinstance(space, gymnasium.spaces.MultiBinary):
            return action_parts.MultiBinary(tuple(space.shape))
        if isinstance(space, Box) and space.dtype.kind in "iuf":
            low, high = (tuple(np.ravel(x).tolist()) for x in (space.low, space.high))
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


def reason_without_goals(environment: Any, observation: ObservationConversion) -> str:
    """Return why no other goals can be given to an environment's steps; empty if they can."""
    parts = observation.parts
    if not isinstance(parts, dict) or not all(key in parts for key in KEYS):
        return f"its observations are no Dict with the keys {', '.join(KEYS)}"
    achieved, desired = (parts[key] for key in KEYS[1:])
    for part in (achieved, desired):
        if not isinstance(part, PartConversion) or part.convert or part.choices:
            return "its goals are not arrays of numbers that the network reads as they are"
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        return "its achieved_goal and its desired_goal differ in shape or type"
    if not find_method(environment, _REWARD):
        return f"it has no method {_REWARD}(achieved_goal, desired_goal, info)"
    return ""


def judge_goals(
    level_name: str, environment: Any, achieved: np.ndarray, desired: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rewards float32 [N] for achieved [N, ...] under desired goals [N, ...].

    Return also whether they end an episode, bool [N]; None if the environment does not say so.
    BadLevel is raised if the environment raises, or if a reward is no number.
    """
    space = environment.observation_space[KEYS[1]]
    pairs = list(zip(achieved.astype(space.dtype), desired.astype(space.dtype), strict=True))
    reward, end = (find_method(environment, name) for name in (_REWARD, _END))
    assert reward
    name = _REWARD
    try:
        rewards = np.array([float(reward(a, d, {})) for a, d in pairs], np.float32)
        name = _END
        ends = np.array([bool(end(a, d, {})) for a, d in pairs], bool) if end else None
    except Exception as error:
        raise BadLevel(
            f"{name} of {level_name} raised {describe_error(error)}: --her_ratio calls it with one "
            f"achieved goal, one desired goal and an empty info"
        ) from error
    if not np.isfinite(rewards).all():
        raise BadLevel(f"{_REWARD} of {level_name} returned {rewards[~np.isfinite(rewards)][0]}")
    return rewards, ends
