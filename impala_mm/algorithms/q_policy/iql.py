"""IQL (arXiv 2110.06169), for recorded games: no action is judged that was not played.

    V(s)         an upper expectile of Q(s, a) over the actions that were played
    Q(s, a)      towards the reward, and V of what follows
    policy       repeats played actions, the more so the better they are than V

Q is the lesser value of the slow copies, except where it learns. V reads what these read: vectors
as they are, and other observations by their network.
"""

import tensorflow as tf

from impala_mm.algorithms.parts import losses, networks
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.q_policy.algorithm import Group, Part, QPolicy
from impala_mm.algorithms.q_policy.settings import IQLSettings
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class IQL(QPolicy):
    """A policy that repeats the better ones of the played actions, and values of no others."""

    settings = IQLSettings
    copies_wait = True  # V and the policy of one step read the same copies
    masks = True
    _config: IQLSettings

    def _prepare_actions(self, environment: EnvironmentSpec) -> None:
        """Take any actions."""

    def _make_own(self, environment: EnvironmentSpec) -> None:
        size = self._critics.num_features
        self._value = networks.make_choice_critics(self._config, 1, size, count=1)

    def _own_groups(self) -> dict[str, Group]:
        value = list(self._value.trainable_variables)
        return {"value": Group(value, self._config.critic_rate)}

    def _goals(self, part: Part) -> tf.Tensor:
        """Return the goals: rewards, and V of what follows."""
        return self._bootstrapped(part, self._value_at(self._features_after(part)))

    def _train_critics(self, part: Part, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Make a step of V, and then of the Q-networks, whose goals it changes."""

        def loss() -> tuple[tf.Tensor]:
            advantages = self._advantages(self._shifted(part, 0))
            expectile = self._config.expectile
            weights = tf.where(advantages > 0, expectile, 1 - expectile)
            return (part.mean(tf.cast(weights, advantages.dtype) * tf.square(advantages)),)

        (loss,) = self._apply("value", loss, exchange)
        metrics = losses.as_metrics({"baseline": loss}, part.live, "mean")
        return metrics | super()._train_critics(part, exchange)

    def _policy_loss(
        self, part: Part, policy: Distribution
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the loss: the negative log-probability of the played actions, weighed."""
        config = self._config
        weights = tf.exp(config.inverse_temperature * self._advantages(part))
        capped = weights >= config.largest_weight
        weights = tf.stop_gradient(tf.minimum(weights, config.largest_weight))
        terms = -weights * tf.cast(policy.log_prob(part.played), weights.dtype)
        metrics = {
            "capped_weights": part.mean(tf.cast(capped, weights.dtype)),
            "entropy": part.mean(policy.entropy()),
        }
        return part.mean(losses.mask(part.live, terms)), metrics

    def _after_policy(
        self, part: Part, metrics: dict[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        return {name: part.per_step(mean) for name, mean in metrics.items()}

    def _advantages(self, part: Part) -> tf.Tensor:
        """Return by how much the played actions are better than V [T, B]."""
        features = self._targets.unroll(part.before, part.states.critics)
        played = tf.reduce_min(self._targets.values(features, part.played), 0)
        return played - self._value_at(features)

    def _value_at(self, features: tf.Tensor) -> tf.Tensor:
        """Return V [T, B] at features [T, B, F] of the slow copies."""
        return self._value(features)[0, ..., 0]
