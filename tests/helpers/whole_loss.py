"""IMPALA's loss of a batch from its network's outputs, with the entropy as the only regulariser."""

from impala_mm.algorithms import impala, policies
from impala_mm.algorithms.advantages import VTrace
from impala_mm.algorithms.regulariser_settings import RegulariserSettings
from impala_mm.algorithms.regularisers import Regularisers
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec


def impala_loss(
    *,
    weight,
    baseline_cost,
    entropy_cost,
    reduction="sum",
    scale_advantages=False,
    surrogate=None,
    lambda_=1.0,
    clip_rho_threshold=1.0,
    clip_c_threshold=1.0,
    **of_batch,
):
    """Return the Losses for the arguments of `vtrace_step`, as `Impala.update` computes them."""
    estimate = VTrace(lambda_, clip_rho_threshold, clip_c_threshold)
    step = impala.vtrace_step(weight=weight, estimate=estimate, **of_batch)
    actions = ActionSpec(Discrete(of_batch["parameters"].shape[-1]))
    entropy = Regularisers(RegulariserSettings(entropy_cost=entropy_cost), actions).measure(
        step.policy, policies.categorical, (), (), step.steps.live, weight, reduction
    )
    return impala.impala_loss(
        step,
        entropy,
        weight=weight,
        baseline_cost=baseline_cost,
        reduction=reduction,
        scale_advantages=scale_advantages,
        surrogate=surrogate,
    )
