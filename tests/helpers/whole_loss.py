"""IMPALA's loss of a batch from its network's outputs, without features."""

from impala_mm.algorithms.impala import algorithm as impala
from impala_mm.algorithms.parts.advantages import VTrace


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
    return impala.impala_loss(
        step,
        step.policy.entropy(),
        weight=weight,
        baseline_cost=baseline_cost,
        entropy_cost=entropy_cost,
        reduction=reduction,
        scale_advantages=scale_advantages,
        surrogate=surrogate,
    )
