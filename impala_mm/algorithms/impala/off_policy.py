"""Parts of IMPALA for replayed unrolls: a trust region, and IMPACT's target and surrogate.

    trust region   LASER (arXiv 1909.11583): a step whose state has KL(pi || mu) beyond a threshold
                   counts for neither policy nor values, and cuts the V-trace of the steps before it
    surrogate      IMPACT (arXiv 1912.00167): the policy stays near a target policy, which changes
                   every few updates and is the one that V-trace judges

`impala.Impala` calls them with the transitions [T, B] of a batch.
"""

import math
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import targets
from impala_mm.algorithms.parts.distributions import Distribution


class TargetPolicy:
    """The network and head of an older policy."""

    def __init__(self, network: Any, head: snt.Module, policy: list[tf.Variable], every: int):
        """Let both follow the variables of the `policy`, of its network and then of its head.

        They are copied before the first update, and after each `every` of them.
        """
        self._policy, self._every = policy, every
        self.network, self._head = network, head
        head(tf.zeros([1, network.num_features]))  # creates its variables
        self._copies = [v for module in (network, head) for v in module.trainable_variables]
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="target_updates")
        self.variables = [*self._copies, self._updates]

    def parameters(self, features: Any) -> tf.Tensor:
        """Return the parameters [T+1, B, P] of features [T+1, B, F] of its own network."""
        return tf.stop_gradient(snt.BatchApply(self._head)(features))

    def begin_update(self) -> None:
        """Copy the policy before its first update and after every few, and count the update."""
        copies = tf.equal(self._updates % self._every, 0)
        targets.follow(self._copies, self._policy, share=tf.cast(copies, tf.float32))
        self._updates.assign_add(1)


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
