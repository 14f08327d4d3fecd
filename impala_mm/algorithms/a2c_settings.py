"""The flags of --algorithm=a2c."""

import dataclasses

from impala_mm.algorithms import policy_gradient_settings as family
from impala_mm.config.flags import default, flag, with_flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(family.Settings):
    """The settings of a process of A2C."""

    unroll_length: int = default(Config, "unroll_length", 16)
    learning_rate: float = default(Config, "learning_rate", 0.0008)
    # fmt: off
    largest_ratio: float = flag(
        1.0, group="A2C", infinite=True, learner_only=True, least=0,
        only_with=family.SEVERAL_STEPS | with_flag("rounds_overlap"),
        text="Largest importance weight of a step: the ratio of its action's probability under the "
             "policy to that under the one that played. It matters with --rounds_overlap, or with "
             "several minibatches or epochs. inf: no limit.")
    # fmt: on
