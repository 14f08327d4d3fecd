"""Trained policies from Python: loading one, and playing complete games with it."""

import contextlib
import numbers
import os
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from impala_mm.config import flags, user_modules
from impala_mm.config.errors import BadEnvironment, BadSettings, ImpalaError
from impala_mm.config.messages import describe_error
from impala_mm.runtime import lifecycle

if TYPE_CHECKING:
    from impala_mm.evaluation.results import Evaluation
    from impala_mm.policy.policy import Policy


def load_policy(
    logdir: str | os.PathLike[str], best: bool = False, level_name: str = "", **changes: Any
) -> "Policy":
    """Return the policy of a run's newest or best checkpoint, or of a checkpoint's own folder.

        policy = impala_mm.load_policy("runs/CartPole-v1-impala-20261122-101500")
        action = policy(observation)

    `level_name` is another level that the network fits. `changes` are flags that replace the
    run's, such as `seed`. Raises BadCheckpoint, BadEnvironment and BadSettings.
    """
    if not isinstance(logdir, str | os.PathLike):
        raise BadSettings(f"logdir={logdir!r}: name the folder of a run or of a checkpoint")
    if not isinstance(level_name, str):
        raise BadSettings(f"level_name={level_name!r}: it must be a text, the id of a level")
    with flags.refusals_raised(), _environments_that_can_be_made():
        user_modules.refuse_foreign()
        lifecycle.import_tensorflow()
        from impala_mm.policy import policy  # noqa: PLC0415

        return policy.load_policy(os.fspath(logdir), best, level_name, **changes)


def evaluate(
    logdir: str | os.PathLike[str],
    num_episodes: int = 10,
    level_name: str = "",
    deterministic: bool = False,
    best: bool = False,
    num_envs: int = 16,
    seed: int = 1,
    **options: Any,
) -> "Evaluation":
    """Play complete games with a run's newest or best checkpoint, or with a checkpoint's folder.

        result = impala_mm.evaluate("runs/c", num_episodes=100)
        result.mean, result.returns, result.lengths

    The level is the run's own or another one that the network fits. `options` of the environment,
    such as `sticky_actions`, are the run's unless given; but `opponents` are then random, and
    `no_reward_steps` 0, or 1,000 in deterministic games of Atari. Raises BadCheckpoint,
    BadEnvironment and BadSettings, and another ImpalaError for opponents that cannot play.
    """
    for name, number in (("num_episodes", num_episodes), ("num_envs", num_envs)):
        if not isinstance(number, numbers.Integral) or number < 1:
            raise BadSettings(f"{name}={number!r}: it must be a whole number of at least 1")
    policy = load_policy(logdir, best, level_name, seed=seed, **options)
    from impala_mm.environments.types import BadLevel  # noqa: PLC0415
    from impala_mm.evaluation.games import evaluate_level  # noqa: PLC0415
    from impala_mm.teachers.opponents import load_player  # noqa: PLC0415

    if len(policy.levels) > 1:
        raise BadLevel(f"{logdir} was trained on {' and '.join(policy.levels)}: name one")
    idle = options.get("no_reward_steps")
    level = next(iter(policy.levels))
    with flags.refusals_raised(), _environments_that_can_be_made():
        return evaluate_level(
            *(policy, level, num_episodes, num_envs, deterministic, seed, idle),
            load_opponent=load_player,
        )


@contextlib.contextmanager
def _environments_that_can_be_made() -> Iterator[None]:
    """Raise BadEnvironment for whatever the constructor of an environment raises."""
    try:
        yield
    except ImpalaError:
        raise
    except Exception as error:
        from impala_mm.environments import levels  # noqa: PLC0415

        frames = traceback.extract_tb(error.__traceback__)
        if not any(frame.filename == levels.__file__ for frame in frames):
            raise
        raise BadEnvironment(f"the environment cannot be made: {describe_error(error)}") from error
