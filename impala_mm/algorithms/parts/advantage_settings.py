"""The flags of `advantages`, for the settings of every algorithm that uses it."""

import dataclasses

from impala_mm.config.flags import Condition, flag, with_flag
from impala_mm.config.settings import Config

GROUP = "Advantages"
_GAE = with_flag("advantages", "gae")


@dataclasses.dataclass(frozen=True)
class AdvantageSettings(Config):
    """Settings that say how advantages are estimated."""

    # fmt: off
    advantages: str = flag(
        "gae", group=GROUP, learner_only=True, choices=("gae", "vtrace", "n_step"),
        text="How advantages and value targets are computed from an unroll. gae: generalised "
             "advantages. vtrace: V-trace, which corrects for the policy's changes since it "
             "played. n_step: returns of n_steps steps.")
    gae_lambda: float = flag(
        0.95, group=GROUP, learner_only=True, least=0, most=1,
        only_with=Condition(  # RND reads it with any
            _GAE.words, lambda c: "" if getattr(c, "rnd_weight", 0) else _GAE.why_idle(c)
        ),
        text="Lambda of the generalised advantages. At 1 they are the returns up to the end of "
             "the unroll, at 0 the errors of single steps.")
    n_steps: int = flag(
        5, group=GROUP, learner_only=True, least=1, only_with=with_flag("advantages", "n_step"),
        text="Number of steps in the returns of advantages=n_step.")
    vtrace_lambda: float = flag(
        0.95, group=GROUP, learner_only=True, least=0, most=1,
        only_with=with_flag("advantages", "vtrace"),
        text="V-trace's lambda. Below 1, value targets rely more on the value function and vary "
             "less; IMPALA's published settings assume 1.")
    clip_rho_threshold: float = flag(
        1.0, group=GROUP, infinite=True, learner_only=True, least=0,
        only_with=with_flag("advantages", "vtrace"),
        text="V-trace's rho-bar, the largest importance weight of a step's own error in the "
             "value targets. It determines the value function that learning converges to.")
    clip_c_threshold: float = flag(
        1.0, group=GROUP, infinite=True, learner_only=True, least=0,
        only_with=with_flag("advantages", "vtrace"),
        text="V-trace's c-bar, the largest importance weight by which errors of later steps "
             "reach a value target. It affects how fast the value function converges.")
    # fmt: on
