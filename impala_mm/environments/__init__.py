"""Batches of environments, stepped as `trajectory` says: an episode's end is its own entry."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from impala_mm.environments.levels import Level
    from impala_mm.environments.spaces import Reading


class EnvironmentSpec(NamedTuple):
    """What networks and learners need to know of an environment."""

    level_name: str
    observation: tf.TensorSpec  # of one observation
    num_actions: int
    action_repeats: int  # environment frames per step
    reward_threshold: float | None  # the mean return at which it counts as solved


class Step(NamedTuple):
    """What one step of E environments brought."""

    reward: np.ndarray  # float32 [E], raw
    terminated: np.ndarray  # bool [E]
    truncated: np.ndarray  # bool [E]
    observation: np.ndarray  # [E, ...]
    first: np.ndarray  # bool [E]: this was a reset, and the action was ignored
    fault: np.ndarray  # bool [E]: the environment is broken; `rebuild` it


class Episode(NamedTuple):
    """A finished episode."""

    environment: int
    whole_game: bool  # raw return of a whole game; otherwise of a training episode (one life)
    episode_return: float
    length: int  # steps, resets not counted


class Environments(Protocol):
    """E copies of one environment."""

    spec: EnvironmentSpec
    faults: list[str]  # one line for each fault so far, newest last

    def reset(self) -> Step:
        """Resets all; first is true everywhere."""

    def step(self, actions: np.ndarray) -> Step:
        """One step of each; an environment whose episode ended with the step before resets."""

    def rebuild(self, environment: int) -> Step:
        """Makes a broken one anew and resets it: [1] of everything."""

    def episodes(self) -> list[Episode]:
        """Those that ended since the last call."""

    def close(self) -> None:
        """Frees what the environments hold."""


class BadLevel(ValueError):
    """The user's choice of level or of its options cannot be played; says why in one sentence."""


def make(level_name: str, num_envs: int, seed: int, **options: Any) -> Environments:
    """`num_envs` copies of a level, number i seeded with `seed` + i; `options` as for `spec`.

    A level is the id of a gymnasium or classic gym environment, `gym:ID` where both know it and
    gym's is meant, `my_package.module:ID` where importing a module registers it, or our own `catch`
    and `memory`. Raises BadLevel.
    """
    from impala_mm.environments import vector  # noqa: PLC0415

    level, reading, described = _look(level_name, **options)
    return vector.Vector(described, reading, level.open, num_envs, seed)


def spec(level_name: str, **options: Any) -> EnvironmentSpec:
    """What `make` would make copies of. Options, each 0 where the environment is to be left as is:

    width, height: pixels to which image observations are resized;
    num_action_repeats: how often an action is repeated; the rewards are summed.
    """
    return _look(level_name, **options)[2]


def _look(
    level_name: str, width: int = 0, height: int = 0, num_action_repeats: int = 0
) -> tuple["Level", "Reading", EnvironmentSpec]:
    """Makes one environment, reads its spaces, and closes it."""
    # Only who plays needs gymnasium: a learner gets by with the names above.
    from impala_mm.environments import levels, spaces  # noqa: PLC0415

    level = levels.find(level_name)
    environment = level.open()
    try:
        reading = spaces.read(level_name, environment, width, height)
    finally:
        environment.close()
    described = EnvironmentSpec(
        level_name,
        tf.TensorSpec(reading.shape, tf.as_dtype(reading.dtype)),
        reading.num_actions,
        num_action_repeats or 1,
        level.reward_threshold,
    )
    return level, reading, described
