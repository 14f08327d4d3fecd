"""A learning rate that follows the policy's divergence, as in rl_games and rsl_rl.

    KL(mu || pi), from the policy that played to the one in training: the mean over all optimizer
    steps of an update and all learners
        above 2 x --learning_rate_kl        the next update's rate is 1.5 times smaller
        below --learning_rate_kl / 2        1.5 times larger

The rate stays the same during an update. rsl_rl and rl_games ("legacy") change it after each
minibatch, rl_games ("standard") after each pass. They make some 20 steps per update; of hundreds of
steps, the first ones hardly differ from the policy that played, and would each raise the rate.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature import Added, Feature, Student
from impala_mm.algorithms.policy_gradient.settings import PolicyGradientSettings
from impala_mm.algorithms.types import Context, Role
from impala_mm.config.settings import Config
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec

LEAST, MOST = 1e-6, 1e-2  # of the rate
_FACTOR = 1.5


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return the rate that the flags ask for."""
    if not isinstance(config, PolicyGradientSettings) or role is not Role.LEARNER:
        return []
    return [AdaptiveRate(config)] if config.learning_rate_kl else []


class AdaptiveRate(Feature):
    """The learning rate of an update, and the divergences by which the next one's is found."""

    def __init__(self, config: PolicyGradientSettings):
        self._wanted = config.learning_rate_kl
        self._rate = tf.Variable(config.learning_rate, trainable=False, name="adaptive_rate")
        # Of the steps since the rate was found: the sum of divergences and their number.
        self._sums = tf.Variable(tf.zeros([2], tf.float64), trainable=False, name="divergences")
        self.carried = [self._rate, self._sums]

    def begin_update(self, context: Context) -> dict[str, tf.Tensor]:
        """Find the rate of this update."""
        total, count = tf.unstack(self._sums.read_value())
        mean = total / count  # NaN before the first update, and if none of its steps counted
        factor = tf.where(mean > 2.0 * self._wanted, 1.0 / _FACTOR, 1.0)
        factor = tf.where(mean < 0.5 * self._wanted, _FACTOR, factor)
        self._rate.assign(tf.clip_by_value(self._rate * factor, LEAST, MOST))
        self._sums.assign(tf.zeros_like(self._sums))
        return {}

    def learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return it in place of the one of the schedule."""
        return self._rate.read_value()

    def loss(self, student: Student, prepared: Any) -> Added:
        """Measure the divergences."""
        divergences = student.make(student.behaviour).kl(student.policy)
        return Added(0.0, {"kl_mu_pi": student.sums(divergences)})

    def after(
        self, measured: Mapping[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Add those of all learners; return this one's mean."""
        sums = exchange.mean(measured["kl_mu_pi"], name="learning_rate_kl") * exchange.group.size
        self._sums.assign_add(tf.cast(sums, tf.float64))
        return super().after(measured, exchange)
