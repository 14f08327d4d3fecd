"""IMPALA's loss: what the network said about an unroll, judged by what followed.

algorithms/impala.py calls `impala_loss` inside its update, with the network's outputs at entries
0..T of a batch of unrolls and with those entries' fields. trajectory.py says what an entry holds;
the output at entry t is judged by entry t+1, and that pair is "transition t" here: [T+1, B, ...]
comes in, everything about transitions is [T, B].
"""

from typing import NamedTuple

import tensorflow as tf

from impala_mm import vtrace
from impala_mm.distributions import Categorical

REWARD_CLIPPING = ("abs_one", "soft_asymmetric", "none")
REDUCTIONS = ("sum", "mean")


def clip_reward(rewards: tf.Tensor, how: str) -> tf.Tensor:
    """Raw rewards as the network reads them and the loss counts them; one of REWARD_CLIPPING."""
    if how == "abs_one":
        return tf.clip_by_value(rewards, -1.0, 1.0)
    if how == "soft_asymmetric":  # a loss weighs less than a gain, and neither passes 5
        squeezed = 5.0 * tf.tanh(rewards / 5.0)
        return tf.where(rewards < 0, 0.3 * squeezed, squeezed)
    if how == "none":
        return tf.identity(rewards)
    raise ValueError(f"reward clipping {how!r} is none of {', '.join(REWARD_CLIPPING)}")


class Losses(NamedTuple):
    """Scalars, float32."""

    total: tf.Tensor  # policy + baseline_cost x baseline + entropy_cost x entropy
    policy: tf.Tensor
    baseline: tf.Tensor
    entropy: tf.Tensor  # the negative entropy: to minimise it is to explore
    shift: tf.Tensor  # log-probability that the actions lost since they were chosen; in no total


def impala_loss(
    *,
    policy_logits: tf.Tensor,
    values: tf.Tensor,
    actions: tf.Tensor,
    rewards: tf.Tensor,
    terminated: tf.Tensor,
    first: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    weight: tf.Tensor,
    discounting: float,
    baseline_cost: float | tf.Tensor,
    entropy_cost: float,
    reduction: str = "sum",
    lambda_: float = 1.0,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    clip_c_threshold: float | None = 1.0,
) -> Losses:
    """Policy, baseline and entropy loss of B unrolls by V-trace.

    Network outputs at entries 0..T: policy_logits [T+1, B, A], values [T+1, B]. Fields of these
    entries, [T+1, B]: actions, rewards (clipped), terminated, first, and behaviour_log_probs, the
    log-probability that the behaviour policy gave to the entry's action. Whether an entry is
    truncated does not matter: the value of what it shows is the bootstrap, as it is anywhere.

    weight [B] multiplies all terms of its column. A column of weight 0 may hold anything, NaN
    included: it adds 0 to every loss and to every gradient.
    """
    policy_logits, values = tf.cast(policy_logits, tf.float32), tf.cast(values, tf.float32)
    # Made harmless before anything is computed from it: masked afterwards, its gradient is NaN.
    values = tf.where(weight > 0, values, 0.0)
    steps = transitions(
        values=values,
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        first=first,
        behaviour_log_probs=behaviour_log_probs,
        weight=weight,
        discounting=discounting,
    )
    policy = Categorical(tf.where(steps.live[..., tf.newaxis], policy_logits[:-1], 0.0))
    log_probs = policy.log_prob(steps.actions)
    targets = vtrace.from_importance_weights(
        tf.where(steps.live, log_probs - steps.behaviour_log_probs, 0.0),
        steps.discounts,
        steps.rewards,
        values[:-1],
        values[-1],
        clip_rho_threshold=clip_rho_threshold,
        clip_pg_rho_threshold=clip_pg_rho_threshold,
        lambda_=lambda_,
        clip_c_threshold=clip_c_threshold,
    )
    policy_loss = reduce(-log_probs * targets.pg_advantages, steps.live, weight, reduction)
    errors = targets.vs - values[:-1]
    baseline_loss = reduce(0.5 * tf.square(errors), steps.live, weight, reduction)
    entropy_loss = reduce(-policy.entropy(), steps.live, weight, reduction)
    total = policy_loss + baseline_cost * baseline_loss + entropy_cost * entropy_loss
    shift = reduce(steps.behaviour_log_probs - log_probs, steps.live, weight, reduction)
    return Losses(total, policy_loss, baseline_loss, entropy_loss, tf.stop_gradient(shift))


class Transitions(NamedTuple):
    """From each entry to the next, [T, B]. Where not live, nothing depends on what stood there."""

    live: tf.Tensor  # bool: somebody's step, in a column that counts
    actions: tf.Tensor  # int: what the policy at t chose; 0 where not live
    rewards: tf.Tensor  # float32: what it brought; V(o_t), a constant, where not live
    discounts: tf.Tensor  # float32: 0 after a termination and where not live
    behaviour_log_probs: tf.Tensor  # float32: of the action; 0 where not live


def transitions(
    *,
    values: tf.Tensor,
    actions: tf.Tensor,
    rewards: tf.Tensor,
    terminated: tf.Tensor,
    first: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    weight: tf.Tensor,
    discounting: float,
) -> Transitions:
    """What V-trace is told about the steps between entries [T+1, B].

    A transition into an entry with `first` is nobody's step, and so is all of a column of weight 0.
    With V(o_t) for its reward and a discount of 0 its V-trace target is V(o_t) itself: the value of
    an episode's last observation is the bootstrap of the step before, and nothing passes from the
    next episode.
    """
    live = ~first[1:] & (weight > 0)
    return Transitions(
        live,
        actions=tf.where(live, actions[1:], 0),
        rewards=tf.where(live, rewards[1:], tf.stop_gradient(values[:-1])),
        discounts=tf.where(live & ~terminated[1:], tf.cast(discounting, tf.float32), 0.0),
        behaviour_log_probs=tf.where(live, behaviour_log_probs[1:], 0.0),
    )


def reduce(terms: tf.Tensor, live: tf.Tensor, weight: tf.Tensor, reduction: str) -> tf.Tensor:
    """Terms [T, B] as one number: where live, times their column's weight [B], summed.

    "mean" divides the sum by the constants T and B, never by how many are live: else a short
    episode would weigh more, and learners that each average their part would not make one average.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"loss reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    total = tf.reduce_sum(tf.where(live, terms, 0.0) * weight)
    return total if reduction == "sum" else total / tf.cast(tf.size(terms), total.dtype)
