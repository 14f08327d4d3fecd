"""PPO: proximal policy optimization (arXiv 1707.06347), for any actions and observations."""

import tensorflow as tf

from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.policy_gradient import PolicyGradient, PolicyTerms
from impala_mm.algorithms.ppo_settings import Settings
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


def make(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    features: Features = NO_FEATURES,
) -> "PPO":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return PPO(Settings.of(config), environment, role, features)


class PPO(PolicyGradient):
    """A policy gradient that ends where a probability has changed by the share `clip`."""

    _config: Settings

    def _policy_terms(self, log_ratios: tf.Tensor, advantages: tf.Tensor) -> PolicyTerms:
        ratios = tf.exp(log_ratios)
        clipped = tf.clip_by_value(ratios, 1.0 - self._config.clip, 1.0 + self._config.clip)
        gains = tf.minimum(ratios * advantages, clipped * advantages)
        return PolicyTerms(-gains, {"clip_fraction": ratios != clipped})
