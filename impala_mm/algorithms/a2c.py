"""A2C: advantage actor-critic (arXiv 1602.01783) with all actors in step.

Its advantages are weighed by clipped importance ratios, which are 1 for the first optimizer step on
a round.
"""

import tensorflow as tf

from impala_mm.algorithms import vtrace
from impala_mm.algorithms.a2c_settings import Settings
from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.policy_gradient import PolicyGradient, PolicyTerms
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


def make(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    features: Features = NO_FEATURES,
) -> "A2C":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return A2C(Settings.of(config), environment, role, features)


class A2C(PolicyGradient):
    """The policy gradient, of one optimizer step per round by default."""

    _config: Settings

    def _policy_terms(self, log_ratios: tf.Tensor, advantages: tf.Tensor) -> PolicyTerms:
        weights = vtrace.clipped_exp(log_ratios, self._config.largest_ratio)
        return super()._policy_terms(log_ratios, tf.stop_gradient(weights) * advantages)
