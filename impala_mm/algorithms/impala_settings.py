"""The flags of --algorithm=impala."""

import dataclasses

from impala_mm.algorithms import advantage_settings
from impala_mm.algorithms.regulariser_settings import RegulariserSettings
from impala_mm.config.flags import AUTO, default, flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(advantage_settings.Settings, RegulariserSettings):
    """The settings of a process of IMPALA."""

    advantages: str = default(advantage_settings.Settings, "advantages", "vtrace")
    vtrace_lambda: float = default(advantage_settings.Settings, "vtrace_lambda", 0.9)
    # `auto.for_task` says what these are for each environment.
    box_policy: str = default(Config, "box_policy", "auto")
    normalize_observations: bool = default(Config, "normalize_observations", AUTO)
    normalize_rewards: bool = default(Config, "normalize_rewards", AUTO)
    separate_networks: bool = default(Config, "separate_networks", AUTO)
    entropy_cost: float = default(Config, "entropy_cost", AUTO)
    kl_mu_pi_cost: float = default(RegulariserSettings, "kl_mu_pi_cost", AUTO)
    # fmt: off
    clip_pg_rho_threshold: float = flag(
        1.0, group="IMPALA", least=0, learner_only=True,
        text="Largest importance weight of a step in the policy gradient.")
    # fmt: on
