"""The flags of --algorithm=vpg."""

import dataclasses

from impala_mm.algorithms import policy_gradient_settings as family
from impala_mm.config.flags import default
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(family.Settings):
    """The settings of a process of VPG."""

    unroll_length: int = default(Config, "unroll_length", 128)
    learning_rate: float = default(Config, "learning_rate", 0.003)
    gae_lambda: float = default(family.Settings, "gae_lambda", 1.0)
