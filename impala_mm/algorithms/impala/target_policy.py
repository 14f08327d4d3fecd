"""A copy of the policy that changes every few updates: the target network of IMPACT."""

from typing import Any

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import action_policies, networks, targets
from impala_mm.algorithms.parts.action_policies import PolicyDistribution
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


class TargetPolicy:
    """The network and head of an older policy."""

    def __init__(
        self,
        config: Config,
        environment: EnvironmentSpec,
        mean: Any,  # the algorithm's `Normaliser.mean`
        distribution: PolicyDistribution,
        policy: list[tf.Variable],
        every: int,
    ):
        """Copy the variables of the `policy`, of its network and then of its head.

        They are copied again before the first update, and after each `every` of them.
        """
        self._policy, self._every = policy, every
        self.network = networks.make_actor_critic(config, environment, mean)
        self._head = action_policies.make_head(distribution, config.policy_init_scale)
        self._head(tf.zeros([1, self.network.num_features]))  # creates its variables
        modules = (self.network, self._head)
        self._copies = [v for module in modules for v in module.trainable_variables]
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
