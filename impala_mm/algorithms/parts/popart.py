"""PopArt: a value head that learns normalised targets, whatever the size of the rewards.

The head's outputs have the unit and the mean of the value targets (van Hasselt et al. 2016, arXiv
1602.07714): value = deviation x output + mean. When mean and deviation follow the targets of a
batch, the head's weights and bias are rescaled such that every value stays what it was. So a reward
a thousand times larger than all before changes neither the values nor the size of the next step.

`value_units.make_unit` makes it for --value_normalization=popart.
"""

import tensorflow as tf

from impala_mm.algorithms.parts.normalisers import Moments
from impala_mm.distributed.gradients import GradientReducer

# Transitions over which mean and deviation are taken: the newest ones, of all learners, since
# targets grow while the policy improves.
MEMORY = 50_000
# Least deviation, absolute and as a share of the mean. Targets that hardly differ, such as those of
# a game without rewards, would otherwise be magnified until they are noise; and outputs of many
# deviations would lose, in float32, more than 1e-4 of one.
LEAST, LEAST_SHARE = 1e-4, 1e-2


class PopArt:
    """A `value_units.ValueUnit`: the standard deviation of the newest value targets."""

    def __init__(self, weights: tf.Variable, bias: tf.Variable):
        """Rescale `weights` [F, 1] and `bias` [1] of a value head."""
        self._weights, self._bias = weights, bias
        self._moments = Moments(1, "value_target", memory=MEMORY)
        self._mean = tf.Variable(0.0, trainable=False, name="value_mean")
        self._deviation = tf.Variable(1.0, trainable=False, name="value_deviation")
        self.learning = self._moments.variables
        self.acting = [self._mean, self._deviation]

    def values(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return values in the unit of the rewards from the head's outputs [...]."""
        deviation, mean = (tf.cast(x, outputs.dtype) for x in (self._deviation, self._mean))
        return deviation * outputs + mean

    def for_network(self, rewards: tf.Tensor) -> tf.Tensor:
        """Return sign(r) log(1 + |r|): a reward of 1000 beside features of 1 would be all there is.

        It is a fixed function, so that values stay what they are when the deviation changes.
        """
        return tf.sign(rewards) * tf.math.log1p(tf.abs(rewards))

    def squared(self) -> tf.Tensor:
        """Return the variance of the value targets."""
        return tf.square(self._deviation)

    def scale_advantages(self, advantages: tf.Tensor) -> tf.Tensor:
        """Return the advantages in deviations: they are differences of what values stand for."""
        return advantages / tf.cast(self._deviation, advantages.dtype)

    def see_targets(self, targets: tf.Tensor, live: tf.Tensor, exchange: GradientReducer) -> None:
        """Let mean and deviation follow the targets [T, B] where `live`; no value changes.

        Targets that are not finite, on any learner, change nothing.
        """
        rows = tf.reshape(targets, [-1, 1])
        self._moments.update(rows, tf.reshape(live, [-1]), exchange)
        mean, variance = self._moments.mean[0], self._moments.variance[0]
        least = tf.maximum(tf.cast(LEAST, tf.float64), LEAST_SHARE * tf.abs(mean))
        deviation = tf.maximum(tf.sqrt(variance), least)
        known = self._moments.count > 0
        self._rescale(
            tf.where(known, tf.cast(mean, tf.float32), self._mean),
            tf.where(known, tf.cast(deviation, tf.float32), self._deviation),
        )

    def see_error(self, squared: tf.Tensor) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, tf.Tensor]:
        """Return the mean and the deviation."""
        return {
            "value_mean": self._mean.read_value(),
            "value_deviation": self._deviation.read_value(),
        }

    def _rescale(self, mean: tf.Tensor, deviation: tf.Tensor) -> None:
        """Take this mean and deviation; the weights and the bias undo it, computed in float64."""
        new_mean, new, old_mean, old, weights, bias = (
            tf.cast(x, tf.float64)
            for x in (mean, deviation, self._mean, self._deviation, self._weights, self._bias)
        )
        self._weights.assign(tf.cast(weights * (old / new), self._weights.dtype))
        self._bias.assign(tf.cast((old * bias + old_mean - new_mean) / new, self._bias.dtype))
        self._mean.assign(mean)
        self._deviation.assign(deviation)
