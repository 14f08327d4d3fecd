"""The flags of --algorithm=impala."""

import dataclasses
import math
from typing import ClassVar

from impala_mm.algorithms.feature_settings import RegulariserSettings, TeacherSettings
from impala_mm.algorithms.parts.advantage_settings import AdvantageSettings
from impala_mm.config.flags import AUTO, default, flag, with_flag
from impala_mm.config.settings import Config

_REPLAY = "Learning from replay"


@dataclasses.dataclass(frozen=True)
class ImpalaSettings(AdvantageSettings, RegulariserSettings, TeacherSettings):
    """The settings of a process of IMPALA."""

    ignored: ClassVar[frozenset[str]] = frozenset({"eval_epsilon"})

    advantages: str = default(AdvantageSettings, "advantages", "vtrace")
    vtrace_lambda: float = default(AdvantageSettings, "vtrace_lambda", 0.9)
    # `auto.for_task` says what these are for each environment.
    box_policy: str = default(Config, "box_policy", "auto")
    normalize_observations: bool = default(Config, "normalize_observations", AUTO)
    normalize_rewards: bool = default(Config, "normalize_rewards", AUTO)
    subtract_mean_image: bool = default(Config, "subtract_mean_image", AUTO)
    separate_networks: bool = default(Config, "separate_networks", AUTO)
    entropy_cost: float = default(Config, "entropy_cost", AUTO)
    kl_mu_pi_cost: float = default(RegulariserSettings, "kl_mu_pi_cost", AUTO)
    # fmt: off
    clip_pg_rho_threshold: float = flag(
        1.0, group="IMPALA", infinite=True, least=0, learner_only=True,
        text="Largest importance weight of a step in the policy gradient.")
    policy_cloning_cost: float = flag(
        0.0, group=_REPLAY, learner_only=True, least=0,
        needs=with_flag("replay") | with_flag("cloned", "all"),
        text="Weight in the loss of the divergence of the policy from the one that played, at the "
             "steps that the flag cloned selects (CLEAR: 0.01).")
    value_cloning_cost: float = flag(
        0.0, group=_REPLAY, least=0, needs=with_flag("replay") | with_flag("cloned", "all"),
        text="Weight in the loss of the squared distance of values from those of the policy that "
             "played, which actors then record; in the unit that baseline_cost has (CLEAR: "
             "0.005).")
    cloned: str = flag(
        "replay", group=_REPLAY, learner_only=True, choices=("replay", "all"),
        only_with=with_flag("policy_cloning_cost") | with_flag("value_cloning_cost"),
        text="What is cloned. replay: replayed unrolls alone, by KL(mu || pi) and squared "
             "distances, as CLEAR was published. all: new ones, too, by KL(pi || mu) and the "
             "Euclidean norm of the distances, as in elite_buffer_vtrace.")
    trust_region: float = flag(
        math.inf, group=_REPLAY, learner_only=True, least=0,
        needs=with_flag("advantages", "vtrace"),
        text="Largest KL(pi || mu), in nats, at which a step counts: beyond it, the step teaches "
             "neither policy nor values, and cuts the V-trace of earlier ones (LASER; 0.3, for "
             "example). inf: all steps count.")
    impact_clip: float = flag(
        0.0, group=_REPLAY, infinite=True, learner_only=True, least=0,
        text="Train the policy by IMPACT's surrogate: the ratio of its probability of an action "
             "to that of a target policy, an older copy of it, brings no gain beyond 1 plus or "
             "minus this number (0.2, for example); V-trace then judges the target policy. 0: the "
             "policy gradient.")
    impact_target_updates: int = flag(
        16, group=_REPLAY, learner_only=True, least=1, only_with=with_flag("impact_clip"),
        text="Updates after which IMPACT's target policy becomes a copy of the policy.")
    # fmt: on
