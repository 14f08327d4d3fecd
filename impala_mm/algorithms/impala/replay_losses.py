"""Terms of IMPALA's loss for replayed unrolls: a trust region, and IMPACT's surrogate.

    trust region   LASER (arXiv 1909.11583): a step whose state has KL(pi || mu) beyond a threshold
                   counts for neither policy nor values, and cuts the V-trace of the steps before it
    surrogate      IMPACT (arXiv 1912.00167): the policy stays near a target policy, which changes
                   every few updates and is the one that V-trace judges

`impala.Impala` calls these functions with the transitions [T, B] of a batch.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms.parts.distributions import Distribution

_LARGEST_LOG = 20.0  # of a ratio, so that it is finite


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


def share(chosen: tf.Tensor, live: tf.Tensor) -> tf.Tensor:
    """Return the share of live transitions that are chosen; NaN if none is live."""
    counts = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in (chosen & live, live)]
    return tf.where(counts[1] > 0, counts[0] / tf.maximum(counts[1], 1.0), math.nan)
