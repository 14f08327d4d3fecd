"""Goals of an environment, as gymnasium-robotics' GoalEnv has them, for hindsight (--her_ratio).

A goal environment observes a Dict with the keys `observation`, `achieved_goal` and `desired_goal`,
and says by compute_reward(achieved_goal, desired_goal, info) what a step would have been worth
under another goal; by compute_terminated, if it has that, whether the episode would have ended. The
info is an empty dict.
"""

from typing import Any

import numpy as np

from impala_mm.config.messages import describe_error
from impala_mm.environments.methods import find_method
from impala_mm.environments.observations import ObservationConversion, PartConversion
from impala_mm.environments.types import BadLevel

KEYS = ("observation", "achieved_goal", "desired_goal")
_REWARD, _END = "compute_reward", "compute_terminated"


def why_none(environment: Any, observation: ObservationConversion) -> str:
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


def judge(
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
