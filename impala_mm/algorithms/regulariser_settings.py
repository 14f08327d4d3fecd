"""The flags of `features.regularisers`, which the settings of several algorithms inherit.

It stands apart from it because settings must not import TensorFlow.
"""

import dataclasses
import math

from impala_mm.algorithms.teacher_settings import TeacherSettings
from impala_mm.config.flags import flag, with_flag, with_number

_GROUP = "Regularisers"
_REFERENCE = with_flag("kl_ref_pi_cost") | with_number("target_kl_ref_pi")
_TARGETS = (
    with_number("target_entropy")
    | with_number("target_kl_pi_mu")
    | with_number("target_kl_mu_pi")
    | with_number("target_kl_ref_pi")
)
_COST = "Weight in the loss of the mean divergence "


def _target(divergence: str, cost: str) -> str:
    """Return the help of a flag for a divergence's target; `cost` is the flag of its cost."""
    return (
        f"Mean of {divergence}, in nats, at which a Lagrange multiplier holds it; the multiplier "
        f"takes the place of {cost}, which is its initial value (1 if that is 0). Where the "
        f"divergence stays below without help, the cost falls to 1e-6. 0 counts as a target; inf: "
        f"{cost} is fixed."
    )


@dataclasses.dataclass(frozen=True)
class RegulariserSettings(TeacherSettings):
    """The flags of an algorithm whose loss has regularisers."""

    # fmt: off
    target_entropy: float = flag(
        -math.inf, group=_GROUP, learner_only=True,
        text="Mean entropy of the policy, in nats, at which a Lagrange multiplier holds it; the "
             "multiplier takes the place of entropy_cost, which is its initial value (0.01 if that "
             "is 0). Where the entropy stays above without help, the cost falls to 1e-6. 0 counts "
             "as a target; -inf: entropy_cost is fixed.")
    kl_pi_mu_cost: float = flag(
        0.0, group=_GROUP, learner_only=True, least=0, most=1e6,
        text=f"{_COST}KL(pi || mu) per step, from the policy in training to the one that played. "
             f"It keeps the policy from doing what was unlikely.")
    target_kl_pi_mu: float = flag(
        math.inf, group=_GROUP, learner_only=True, least=0,
        text=_target("KL(pi || mu)", "kl_pi_mu_cost"))
    kl_mu_pi_cost: float = flag(
        0.0, group=_GROUP, learner_only=True, least=0, most=1e6, auto=True, with_box=1.0,
        text=f"{_COST}KL(mu || pi) per step, from the policy that played to the one in training. "
             f"It keeps what was likely, and so bounds how far the policy moves during the policy "
             f"lag. auto: what the run in logdir has recorded; for a new run, 1 if an action "
             f"contains numbers (Box) and no teacher acts, otherwise 0.")
    target_kl_mu_pi: float = flag(
        math.inf, group=_GROUP, learner_only=True, least=0,
        text=_target("KL(mu || pi)", "kl_mu_pi_cost"))
    kl_ref_pi_cost: float = flag(
        0.0, group=_GROUP, learner_only=True, least=0, most=1e6,
        text=f"{_COST}KL(reference || pi) per step, from a reference policy to the one in "
             f"training; see reference.")
    target_kl_ref_pi: float = flag(
        math.inf, group=_GROUP, learner_only=True, least=0,
        text=_target("KL(reference || pi)", "kl_ref_pi_cost"))
    reference: str = flag(
        "", group=_GROUP, learner_only=True, needs=_REFERENCE,
        text="Folder of the run, or of one checkpoint, whose policy is the reference of "
             "kl_ref_pi_cost; every learner reads it when it starts. A recurrent one begins each "
             "unroll without a memory. Unset: the policy whose parameters are all 0. It chooses "
             "among all choices with the same probability, and a Box's numbers around 0 with a "
             "deviation of 0.6, where bounds are -1 and 1.")
    multiplier_speed: float = flag(
        0.3, group=_GROUP, learner_only=True, least=0, most=10, only_with=_TARGETS,
        text="Speed of the Lagrange multipliers: each step of the optimizer changes the logarithm "
             "of a multiplier by this number times the distance of its quantity from the target, "
             "in units of the target (of 1 if that is 0) and at most 1.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse an entropy that no policy has."""
        super().__post_init__()
        if self.target_entropy == math.inf:
            raise ValueError(
                "--target_entropy=inf: no policy has that entropy; give a number of nats, or -inf "
                "for a fixed --entropy_cost"
            )
