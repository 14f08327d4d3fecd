"""The flags of --algorithm=impala."""

import dataclasses

from impala_mm.config.flags import flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of IMPALA."""

    # fmt: off
    clip_rho_threshold: float = flag(
        1.0, group="IMPALA", least=0, learner_only=True,
        text="V-trace's rho-bar, the largest importance weight of a step's own error in the "
             "value targets. It determines the value function that learning converges to.")
    clip_c_threshold: float = flag(
        1.0, group="IMPALA", least=0, learner_only=True,
        text="V-trace's c-bar, the largest importance weight by which errors of later steps "
             "reach a value target. It affects how fast the value function converges.")
    clip_pg_rho_threshold: float = flag(
        1.0, group="IMPALA", least=0, learner_only=True,
        text="Largest importance weight of a step in the policy gradient.")
    vtrace_lambda: float = flag(
        0.9, group="IMPALA", least=0, most=1, learner_only=True,
        text="V-trace's lambda. Below 1, value targets rely more on the value function and vary "
             "less; IMPALA's published settings assume 1.")
    # fmt: on
