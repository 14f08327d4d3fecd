"""The flags of --algorithm=ppo.

The defaults are the usual ones for simulated robots (arXiv 1707.06347 and its implementations):
2,048 steps per update, ten passes over them in minibatches of 64, small separate networks with
orthogonal initial weights, normalised observations and rewards. Games of Atari have defaults of
their own.
"""

import dataclasses
from typing import Any, ClassVar

from impala_mm.algorithms import policy_gradient_settings as family
from impala_mm.config.flags import flag, with_flag


@dataclasses.dataclass(frozen=True)
class Settings(family.EpochSettings):
    """The settings of a process of PPO."""

    FOR_ATARI: ClassVar[dict[str, Any]] = family.Settings.FOR_ATARI | {
        "unroll_length": 64,
        "learning_rate": 0.00025,
        "epochs": 4,
        "clip": 0.1,
    }

    # fmt: off
    clip: float = flag(
        0.2, group="PPO", infinite=True, learner_only=True, least=0,
        only_with=family.SEVERAL_STEPS | with_flag("rounds_overlap"),
        text="Change of an action's probability, as a share of that under the policy that "
             "played, beyond which it earns nothing more: PPO's epsilon.")
    # fmt: on
