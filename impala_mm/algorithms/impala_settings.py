"""The flags of --algorithm=impala."""

import dataclasses

from impala_mm.algorithms import advantage_settings
from impala_mm.algorithms.regulariser_settings import RegulariserSettings
from impala_mm.config.flags import default, flag


@dataclasses.dataclass(frozen=True)
class Settings(advantage_settings.Settings, RegulariserSettings):
    """The settings of a process of IMPALA."""

    advantages: str = default(advantage_settings.Settings, "advantages", "vtrace")
    vtrace_lambda: float = default(advantage_settings.Settings, "vtrace_lambda", 0.9)
    # fmt: off
    clip_pg_rho_threshold: float = flag(
        1.0, group="IMPALA", least=0, learner_only=True,
        text="Largest importance weight of a step in the policy gradient.")
    # fmt: on
