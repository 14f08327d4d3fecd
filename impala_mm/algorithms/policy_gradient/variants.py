"""The algorithms of the policy gradient's family, each as what it changes of `PolicyGradient`.

PPO, A2C, VPG, AWR and V-MPO differ in the gain of an action's probability; V-MPO has a temperature
of its own besides.
"""

from typing import ClassVar

import tensorflow as tf

from impala_mm.algorithms.interface import Context, Updated
from impala_mm.algorithms.parts import losses, vtrace
from impala_mm.algorithms.parts.lagrange import Multiplier
from impala_mm.algorithms.policy_gradient.algorithm import PolicyGradient, PolicyTerms
from impala_mm.algorithms.policy_gradient.settings import (
    A2CSettings,
    AWRSettings,
    PolicyGradientSettings,
    PPOSettings,
    VMPOSettings,
    VPGSettings,
)
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer


class PPO(PolicyGradient):
    """Proximal policy optimization (arXiv 1707.06347).

    A change of an action's probability by more than the share `clip` earns nothing more.
    """

    settings: ClassVar[type[PolicyGradientSettings]] = PPOSettings
    _config: PPOSettings

    def _policy_terms(self, log_ratios: tf.Tensor, advantages: tf.Tensor) -> PolicyTerms:
        ratios = tf.exp(log_ratios)
        clipped = tf.clip_by_value(ratios, 1.0 - self._config.clip, 1.0 + self._config.clip)
        gains = tf.minimum(ratios * advantages, clipped * advantages)
        return PolicyTerms(-gains, {"clip_fraction": ratios != clipped})


class A2C(PolicyGradient):
    """Advantage actor-critic (arXiv 1602.01783) with all actors in step.

    It makes one optimizer step per round by default. Its advantages are weighed by clipped
    importance ratios, which are 1 for the first optimizer step on a round.
    """

    settings: ClassVar[type[PolicyGradientSettings]] = A2CSettings
    _config: A2CSettings

    def _policy_terms(self, log_ratios: tf.Tensor, advantages: tf.Tensor) -> PolicyTerms:
        weights = vtrace.clipped_exp(log_ratios, self._config.largest_ratio)
        return super()._policy_terms(log_ratios, tf.stop_gradient(weights) * advantages)


class VPG(PolicyGradient):
    """The plain policy gradient (REINFORCE) with a baseline.

    It makes one optimizer step per round by default. Its returns reach to the end of the unroll,
    where the baseline takes over.
    """

    settings: ClassVar[type[PolicyGradientSettings]] = VPGSettings


class AWR(PolicyGradient):
    """Advantage-weighted regression (arXiv 1910.00177), and behaviour cloning as its limit.

    Every action that was played becomes more probable, by its weight exp(advantage / temperature),
    up to a largest weight. At an infinite temperature all weights are 1, which is behaviour
    cloning: sensible if the unrolls come from a better policy (a source of one's own), or of good
    actions alone (--positive_advantages).
    """

    settings: ClassVar[type[PolicyGradientSettings]] = AWRSettings
    _config: AWRSettings

    def _scaled(
        self, estimates: tf.Tensor, live: tf.Tensor, exchange: GradientReducer, new: bool
    ) -> tf.Tensor:
        """Return the weights [T, B] of the actions, from all learners' advantages alike."""
        config, scaled = self._config, super()._scaled(estimates, live, exchange, new)
        weights = vtrace.clipped_exp(scaled / config.temperature, config.largest_weight)
        if config.positive_advantages:
            weights = tf.where(scaled > 0, weights, 0.0)
        return losses.mask(live, weights)

    def _policy_terms(self, log_ratios: tf.Tensor, advantages: tf.Tensor) -> PolicyTerms:
        terms = super()._policy_terms(log_ratios, advantages)
        capped = advantages > 0.999 * self._config.largest_weight  # which exp() may round down
        return terms._replace(counted={"capped_weights": capped})


class VMPO(PolicyGradient):
    """Maximum a posteriori policy optimisation with a value function (arXiv 1909.12238).

    The better half of all learners' actions becomes more probable, with weights softmax(advantage /
    temperature). A Lagrange multiplier holds the divergence of these weights from equal ones at a
    target by the temperature, and another one the divergence of the policy from the one that played
    (--target_kl_mu_pi).
    """

    settings: ClassVar[type[PolicyGradientSettings]] = VMPOSettings
    _config: VMPOSettings

    def _prepare_updates(self) -> list[tf.Variable]:
        config = self._config
        self._temperature = Multiplier(
            "temperature", config.target_weight_kl, config.temperature, config.temperature_speed
        )
        return [*super()._prepare_updates(), *self._temperature.variables]

    def update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
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
