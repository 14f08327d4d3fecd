"""Terms of IMPALA's loss for replayed unrolls: cloning and a trust region.

    cloning        CLEAR (arXiv 1811.11682): on replayed unrolls the policy stays near the one that
                   played, and values near those that were recorded
    trust region   LASER (arXiv 1909.11583): a step whose state has KL(pi || mu) beyond a threshold
                   counts for neither policy nor values, and cuts the V-trace of the steps before it

`impala.Impala` calls these functions with the transitions [T, B] of a batch.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses
from impala_mm.algorithms.distributions import Distribution

CLONED = ("replay", "all")  # by --cloned, the columns that are cloned and how


class Cloning(NamedTuple):
    """The cloning losses of a batch, combined as --loss_reduction says."""

    policy: tf.Tensor  # []
    value: tf.Tensor  # []


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
