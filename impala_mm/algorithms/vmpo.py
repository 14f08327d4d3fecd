"""V-MPO: maximum a posteriori policy optimisation with a value function (arXiv 1909.12238).

The better half of all learners' actions becomes more probable, with weights softmax(advantage /
temperature). A Lagrange multiplier holds the divergence of these weights from equal ones at a
target by the temperature, and another one the divergence of the policy from the one that played
(--target_kl_mu_pi).
"""

import tensorflow as tf

from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Context, Role
from impala_mm.algorithms.lagrange import Multiplier
from impala_mm.algorithms.policy_gradient import PolicyGradient
from impala_mm.algorithms.vmpo_settings import Settings
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


def make(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    features: Features = NO_FEATURES,
) -> "VMPO":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return VMPO(Settings.of(config), environment, role, features)


class VMPO(PolicyGradient):
    """A policy that imitates the better half of what was played."""

    _config: Settings

    def _prepare_updates(self) -> list[tf.Variable]:
        config = self._config
        self._temperature = Multiplier(
            "temperature", config.target_weight_kl, config.temperature, config.temperature_speed
        )
        return [*super()._prepare_updates(), *self._temperature.variables]

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make the optimizer steps of all epochs and minibatches."""
        temperature = self._temperature.cost()
        metrics, priorities = super().update(batch, context, exchange)
        return metrics | {"temperature": temperature}, priorities

    def _scaled(
        self, estimates: tf.Tensor, live: tf.Tensor, exchange: GradientReducer, new: bool
    ) -> tf.Tensor:
        """Return the weights [T, B] of the actions; for a new batch, adjust the temperature."""
        scaled = super()._scaled(estimates, live, exchange, new)
        temperature = self._temperature.cost(scaled.dtype)
        weights, divergence = better_half(scaled, live, temperature, exchange)
        if new:
            self._temperature.update(divergence, tf.ones_like(divergence), exchange)
        return weights


def better_half(
    advantages: tf.Tensor, live: tf.Tensor, temperature: tf.Tensor, exchange: GradientReducer
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the weights [T, B] of actions, and their divergence from equal weights [].

    The actions are those of the larger half of all learners' advantages where `live`; others have
    the weight 0. All learners' weights have the mean 1 over T x B, so the mean of the policy's
    losses, each times its weight, is V-MPO's sum over the half.
    """
    rank, size = exchange.group.rank, exchange.group.size
    sent = tf.stack([tf.where(live, advantages, 0.0), tf.cast(live, advantages.dtype)])
    place = tf.one_hot(rank, size, dtype=sent.dtype)[:, None, None, None]
    values, flags = tf.unstack(exchange.mean(place * sent, name="advantages") * size, axis=1)
    alive = flags > 0.5  # [learners, T, B]
    lowest = tf.where(alive, values, values.dtype.min)
    ranked = tf.sort(tf.reshape(lowest, [-1]), direction="DESCENDING")
    kept = tf.maximum(tf.reduce_sum(tf.cast(alive, tf.int32)) // 2, 1)
    chosen = alive & (values >= ranked[kept - 1])
    logs = tf.where(chosen, values / temperature, -float("inf"))
    log_shares = tf.where(chosen, logs - tf.reduce_logsumexp(logs), 0.0)
    shares = tf.where(chosen, tf.exp(log_shares), 0.0)
    count = tf.reduce_sum(tf.cast(chosen, shares.dtype))
    divergence = tf.reduce_sum(shares * log_shares) + tf.math.log(count)
    return shares[rank] * tf.cast(tf.size(values), shares.dtype), divergence
