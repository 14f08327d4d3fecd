"""Terms of IMPALA's loss for replayed unrolls: cloning and a trust region.

    cloning        CLEAR (arXiv 1811.11682): on replayed unrolls the policy stays near the one that
                   played, and values near those that were recorded
    trust region   LASER (arXiv 1909.11583): a step whose state has KL(pi || mu) beyond a threshold
                   counts for neither policy nor values, and cuts the V-trace of the steps before it
    surrogate      IMPACT (arXiv 1912.00167): the policy stays near a target policy, which changes
                   every few updates and is the one that V-trace judges

`impala.Impala` calls these functions with the transitions [T, B] of a batch.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses
from impala_mm.algorithms.distributions import Distribution

_LARGEST_LOG = 20.0  # of a ratio, so that it is finite


class Cloning(NamedTuple):
    """The cloning losses of a batch, combined as --loss_reduction says."""

    policy: tf.Tensor  # []
    value: tf.Tensor  # []


class Surrogate(NamedTuple):
    """The clipped objective of IMPACT.

    The ratio r is that of the policy pi to its target, as far as the target is not much less likely
    to act as the behaviour policy mu did: r = min(mu / target, limit) x pi / mu.
    """

    clip: float  # how far r may be from 1 and still gain
    limit: float = 2.0  # largest mu / target

    def gains(
        self,
        log_probs: tf.Tensor,
        behaviour: tf.Tensor,
        target: tf.Tensor,
        advantages: tf.Tensor,
    ) -> tf.Tensor:
        """Return min(r A, clip(r, 1 - clip, 1 + clip) A) from log-probabilities, [T, B] each."""
        log_limited = tf.minimum(behaviour - target, math.log(self.limit))
        log_ratio = tf.stop_gradient(log_limited - behaviour) + log_probs
        ratio = tf.exp(tf.minimum(log_ratio, _LARGEST_LOG))
        clipped = tf.clip_by_value(ratio, 1.0 - self.clip, 1.0 + self.clip)
        return tf.minimum(ratio * advantages, clipped * advantages)


def is_trusted(policy: Distribution, behaviour: Distribution, threshold: float) -> tf.Tensor:
    """Return at which states KL(pi || mu) is at most the threshold, bool [T, B]."""
    return tf.stop_gradient(policy.kl(behaviour)) <= threshold


def clone(
    policy: Distribution,
    behaviour: Distribution,
    values: tf.Tensor,
    recorded: tf.Tensor,
    *,
    live: tf.Tensor,
    fresh: tf.Tensor,
    weight: tf.Tensor,
    cloned: str,
    reduction: str,
) -> Cloning:
    """Return the cloning losses of transitions [T, B].

    "replay" is CLEAR as published: KL(mu || pi) and the squared distance of `values` from the
    `recorded` ones, both [T, B], on columns that are not `fresh`, bool [B]. "all" is that of
    elite_buffer_vtrace: KL(pi || mu) and the root of the sum of squared distances, on all columns.
    `live`, `weight` and `reduction` are those of `losses.reduce`.
    """
    if cloned == "all":
        squares = tf.where(live, tf.square(values - recorded), 0.0) * weight
        total = tf.reduce_sum(squares)
        # The root's gradient is infinite at 0.
        norm = tf.where(total > 0, tf.sqrt(tf.where(total > 0, total, 1.0)), 0.0)
        if reduction == "mean":
            norm /= tf.cast(tf.size(squares), norm.dtype)
        return Cloning(losses.reduce(policy.kl(behaviour), live, weight, reduction), norm)
    live &= ~fresh
    return Cloning(
        losses.reduce(behaviour.kl(policy), live, weight, reduction),
        losses.reduce(tf.square(values - recorded), live, weight, reduction),
    )


def share(chosen: tf.Tensor, live: tf.Tensor) -> tf.Tensor:
    """Return the share of live transitions that are chosen; NaN if none is live."""
    counts = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in (chosen & live, live)]
    return tf.where(counts[1] > 0, counts[0] / tf.maximum(counts[1], 1.0), math.nan)
