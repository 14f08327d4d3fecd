"""TD3 (arXiv 1802.09477), whose policy is one action per observation.

DDPG is TD3 with one Q-network, without smoothing, and without a delay of the policy. TD3+BC (arXiv
2106.06860) adds the distance from the action that was played, for games that others have recorded.
"""

import tensorflow as tf

from impala_mm.algorithms.parts import action_policies, losses
from impala_mm.algorithms.parts.action_policies import PolicyDistribution
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.q_policy import actions
from impala_mm.algorithms.q_policy.algorithm import GOALS, POLICY, Part, QPolicy
from impala_mm.algorithms.q_policy.settings import TD3Settings


class TD3(QPolicy):
    """A deterministic policy, and goals by a slow copy of it whose actions are blurred."""

    settings = TD3Settings
    copies_policy = True
    copies_wait = True
    draws = 1
    _config: TD3Settings

    def _distribution(self) -> PolicyDistribution:
        return action_policies.choose(self._actions, "noisy", self._config.action_noise)

    def _goals(self, part: Part) -> tf.Tensor:
        """Return the goals: rewards, and the least value of a blurred action of the copy."""
        config = self._config
        policy, features = self._after(part, self._target_policy)
        noise = tf.clip_by_value(
            config.smoothing * part.noise[0], -config.smoothing_limit, config.smoothing_limit
        )
        blurred = tf.nest.map_structure(
            lambda action, blur: tf.clip_by_value(action + tf.cast(blur, action.dtype), -1.0, 1.0),
            policy.mode(),
            actions.split(self._actions, self._boxes, noise),
        )
        at = self._at(self._targets, features, GOALS)
        return self._bootstrapped(part, at.value(blurred))

    def _policy_loss(
        self, part: Part, policy: Distribution
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the loss: the negative value of the policy's action."""
        features = self._critics.unroll(part.before, part.states.critics)
        at = self._at(self._critics, features, POLICY)
        action = policy.mode()
        value = at.value(action)
        if not self._config.cloning:
            return part.mean(-value), {}
        # Of a learner's own minibatch: the loss cannot exchange.
        size = part.per_step(part.mean(tf.abs(losses.mask(part.live, value))))
        apart = actions.squared_distance(action, part.played) / self.num_noise
        weight = tf.stop_gradient(tf.math.divide_no_nan(self._config.cloning, size))
        metrics = {"cloning_loss": part.per_step(part.mean(apart))}
        return part.mean(apart - weight * value), metrics
