"""The flags of --algorithm=awr.

The rest of the defaults is PPO's: 2,048 steps per update, ten passes in minibatches of 64 steps.
"""

import dataclasses

from impala_mm.algorithms import policy_gradient_settings as family
from impala_mm.config.flags import flag, with_number


@dataclasses.dataclass(frozen=True)
class Settings(family.EpochSettings):
    """The settings of a process of AWR."""

    # fmt: off
    temperature: float = flag(
        1.0, group="AWR", learner_only=True, least=1e-3,
        text="Scaled advantage at which an action's weight is e times that of an average one. A "
             "lower temperature learns from fewer actions. inf: all weights are 1, which is "
             "behaviour cloning.")
    largest_weight: float = flag(
        20.0, group="AWR", infinite=True, learner_only=True, least=1,
        only_with=with_number("temperature"),
        text="Largest weight of an action. inf: no limit.")
    # fmt: on
