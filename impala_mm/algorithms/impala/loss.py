"""IMPALA's loss: the policy's, the baseline's and the entropy's, with the targets of V-trace.

`impala.Impala` calls these functions with the outputs of its network for a batch of unrolls.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.impala import off_policy
from impala_mm.algorithms.impala.off_policy import Surrogate
from impala_mm.algorithms.parts import action_policies, losses, masking, value_units, vtrace
from impala_mm.algorithms.parts.advantages import Estimates, Estimator
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.parts.value_units import ValueUnit


class ImpalaLosses(NamedTuple):
    """The loss and its parts: float32 scalars."""

    total: tf.Tensor  # policy + baseline_cost x baseline + entropy_cost x entropy
    policy: tf.Tensor
    baseline: tf.Tensor
    entropy: tf.Tensor  # the negative entropy, so that minimising it means exploring
    # Off-policyness: log-probability of the actions under the behaviour policy, minus that under
    # the current policy. It is a metric and not part of the total.
    shift: tf.Tensor
    error: tf.Tensor  # half the baseline's squared error, without Huber's loss; a metric, too


class VTraceStep(NamedTuple):
    """The policy, and what it learns from, for the transitions of a batch, [T, B]."""

    steps: losses.Transitions
    values: tf.Tensor  # float32: of the observations that the actions were chosen from
    policy: Distribution  # the current one
    log_probs: tf.Tensor  # float32: those that it gives to the actions
    weights: tf.Tensor  # float32: truncated importance weights, by which advantages count
    estimates: Estimates
    trusted: tf.Tensor  # bool: live, and within the trust region
    # float32: log-probabilities that IMPACT's target policy gives to the actions; None without it
    target_log_probs: tf.Tensor | None


def vtrace_step(
    *,
    parameters: tf.Tensor,
    values: tf.Tensor,
    actions: Any,
    rewards: tf.Tensor,
    terminated: tf.Tensor,
    first: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    weight: tf.Tensor,
    discounting: float,
    estimate: Estimator,
    clip_pg_rho_threshold: float | None = 1.0,
    distribution: Callable[..., Distribution] = action_policies.categorical,
    masks: Any = (),
    recorded: Any = (),
    trust_region: float = math.inf,
    target_parameters: tf.Tensor | None = None,
) -> VTraceStep:
    """Return the policy of B unrolls, and the advantages and value targets of an `estimate`.

    `parameters` [T+1, B, P] and `values` [T+1, B] are the network's outputs at entries 0..T;
    `distribution` makes the policy of parameters [..., P]. The next arguments, [T+1, B] and for
    `actions` a nest of [T+1, B, ...], are fields of these entries: `actions`, `rewards` (clipped),
    `terminated`, `first`, and `behaviour_log_probs`, the log-probability that the behaviour policy
    gave to the entry's action. There is no `truncated`: at a truncation the value of the entry's
    observation is the bootstrap, as it is at every other entry. `masks`, a nest of [T+1, B, ...],
    are the entries' masks of the actions that follow them, or (); `distribution` takes them as its
    second argument.

    Beyond a `trust_region`, which needs the behaviour policy's `recorded` parameters [T+1, B, P],
    transitions have the importance weight 0: they have no policy loss, their value target is the
    value itself, and nothing of them reaches the targets of the steps before. With
    `target_parameters` [T+1, B, P], importance weights are those of that policy instead of the one
    in training.

    A column of `weight` [B] 0 may hold any values, even NaN.
    """
    parameters, values = tf.cast(parameters, tf.float32), tf.cast(values, tf.float32)
    # Masked before anything is computed from it, since the gradient of a value that is masked
    # afterwards would still be NaN.
    values = tf.where(weight > 0, values, 0.0)
    steps = losses.transitions(
        values=values,
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        first=first,
        behaviour_log_probs=behaviour_log_probs,
        weight=weight,
        discounting=discounting,
    )
    policy = losses.step_policy(distribution, parameters, steps.live, masks)
    log_probs = policy.log_prob(steps.actions)
    judged, target_log_probs = log_probs, None
    if target_parameters is not None:
        target = losses.step_policy(distribution, target_parameters, steps.live, masks)
        judged = target_log_probs = target.log_prob(steps.actions)
    log_ratios = tf.where(steps.live, judged - steps.behaviour_log_probs, 0.0)
    trusted = steps.live
    if trust_region < math.inf:
        allowed = masking.allow_all(~steps.live, masks)
        behaviour = distribution(losses.mask(steps.live, recorded[1:]), allowed)
        trusted &= off_policy.is_trusted(policy, behaviour, trust_region)
        log_ratios = tf.where(trusted | ~steps.live, log_ratios, -math.inf)
    weights = tf.stop_gradient(vtrace.clipped_exp(log_ratios, clip_pg_rho_threshold))
    estimates = estimate(steps, values, log_ratios)
    return VTraceStep(
        steps,
        values[:-1],
        policy,
        log_probs,
        weights,
        estimates,
        trusted,
        target_log_probs,
    )


def impala_loss(
    step: VTraceStep,
    entropy: tf.Tensor,
    *,
    weight: tf.Tensor,
    baseline_cost: float,
    entropy_cost: float | tf.Tensor,
    reduction: str = "sum",
    scale_advantages: bool = False,
    advantage_moments: losses.Moments | None = None,
    unit: ValueUnit | None = None,
    level: tf.Tensor | None = None,
    huber_delta: float = math.inf,
    surrogate: Surrogate | None = None,
) -> ImpalaLosses:
    """Return the loss of B unrolls and its parts, from what `vtrace_step` returned for them.

    With `scale_advantages`, the advantages of live transitions get mean 0 and deviation 1, or are
    scaled by `advantage_moments`. They are scaled before they are weighed, so that an action which
    the current policy would hardly choose has no gradient: if the mean were subtracted from a
    weighed advantage of 0, the rest would drive the policy away from that action, ever further.

    `entropy` [T, B] is that of the step's policy. `unit` (None: that of the rewards) is the one of
    advantages, and of `huber_delta`, above which the errors of the baseline count linearly;
    `baseline_cost` is that of errors in the unit of the rewards. `surrogate` takes the place of the
    policy gradient, for a step with a target policy.

    `weight` [B] multiplies all terms of its column. A column of weight 0 may hold any values, even
    NaN: it adds 0 to every loss and to every gradient.
    """
    steps, values, _, log_probs, weights, estimates, _, target_log_probs = step
    unit = unit or ValueUnit()
    squared = unit.squared(level)
    advantages = unit.scale_advantages(estimates.advantages, level)
    targets = estimates.value_targets

    def reduce(terms: tf.Tensor) -> tf.Tensor:
        return losses.reduce(terms, steps.live, weight, reduction)

    if scale_advantages:
        advantages = losses.standardise(advantages, steps.live, advantage_moments)
    terms = -log_probs * (weights * advantages)
    if surrogate:
        assert target_log_probs is not None
        terms = -surrogate.gains(
            log_probs, steps.behaviour_log_probs, target_log_probs, weights * advantages
        )
    policy_loss = reduce(terms)
    terms = value_units.errors(values, targets)
    error = baseline_loss = reduce(terms)
    if huber_delta < math.inf:
        terms = value_units.errors(values, targets, tf.sqrt(squared), huber_delta=huber_delta)
        baseline_loss = reduce(terms)
    baseline = value_units.cost(baseline_cost, squared, terms, reduce)
    entropy_loss = reduce(-entropy)
    total = policy_loss + baseline + entropy_cost * entropy_loss
    shift = reduce(steps.behaviour_log_probs - log_probs)
    return ImpalaLosses(
        total, policy_loss, baseline_loss, entropy_loss, tf.stop_gradient(shift), error
    )
