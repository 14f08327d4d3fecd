"""AWR: advantage-weighted regression (arXiv 1910.00177), and behaviour cloning as its limit.

Every action that was played becomes more probable, by its weight exp(advantage / temperature), up
to a largest weight. At an infinite temperature all weights are 1, which is behaviour cloning:
sensible if the unrolls come from a better policy (a source of one's own), or of good actions alone
(--positive_advantages).
"""

import tensorflow as tf

from impala_mm.algorithms import losses, vtrace
from impala_mm.algorithms.awr_settings import Settings
from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.policy_gradient import PolicyGradient, PolicyTerms
from impala_mm.config.settings import Config
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


def make(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    features: Features = NO_FEATURES,
) -> "AWR":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return AWR(Settings.of(config), environment, role, features)


class AWR(PolicyGradient):
    """A policy that imitates what was played, weighed by advantages."""

    _config: Settings

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
