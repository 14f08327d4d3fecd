"""The error of a value function, and the unit in which it counts in the loss.

Where returns are large (up to 500 in CartPole), the gradient of squared errors is much larger than
the policy's in the weights that both share, and changes the policy at random. In CartPole, the
off-policyness of IMPALA is 0.3 nats per action with errors in units of the reward, and 0.01 with
errors in units of their own running mean. So an algorithm makes one `ValueUnit` by
--value_normalization:

    self._unit = value_units.make_unit(config.value_normalization, self._value_head)
    self._unit.for_network(reward)                              what the network reads
    values = self._unit.values(outputs, level)                  wherever the head's outputs are used
    self._unit.see_targets(targets, live, exchange, level)      before the loss
    loss = value_units.cost(cost, self._unit.squared(level), value_units.errors(...), mean)
    self._unit.see_error(mean squared error)                    after the loss

`PopArt` is the unit that also moves the head's outputs. In a run over several levels its head has
an output for each (as in arXiv 1809.04474), and `level` is the number of each column's, int32 [B];
where there is one, it is not read.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import sonnet as snt
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

NORMALIZATIONS = ("error", "popart", "none")
_PACE = 0.01  # weight of each batch in the running mean of squared errors

# Numbers of levels, int32 [B] or [T, B]; None where there is one level.
Level: TypeAlias = tf.Tensor | None


class ValueUnit:
    """The unit in which a value head's outputs and its errors are: here that of the rewards.

    It is equal on all learners.
    """

    def __init__(self) -> None:
        self.learning: list[tf.Variable] = []  # what only learners need; it is carried
        # What `values` reads; it is carried, too, and belongs to the weights.
        self.acting: list[tf.Variable] = []

    def values(self, outputs: tf.Tensor, level: Level = None) -> tf.Tensor:
        """Return values [...] in the unit of the rewards from the head's outputs [..., L]."""
        return tf.squeeze(outputs, -1)

    def for_network(self, rewards: tf.Tensor) -> tf.Tensor:
        """Return the rewards [...] that the network reads: moderate, if they may be large."""
        return rewards

    def squared(self, level: Level = None) -> tf.Tensor:
        """Return the square of the unit, float32 [] or [B]: what squared errors are divided by."""
        return tf.ones([])

    def scale_advantages(self, advantages: tf.Tensor, level: Level = None) -> tf.Tensor:
        """Return advantages [T, B] in the unit in which they weigh."""
        return advantages

    def see_targets(
        self, targets: tf.Tensor, live: tf.Tensor, exchange: GradientReducer, level: Level = None
    ) -> None:
        """Learn from the value targets [T, B] of a batch where `live`, before they are used."""

    def see_error(self, squared: tf.Tensor) -> None:
        """Learn from the mean squared error of a batch, float32 [], that all learners share."""

    def metrics(self) -> dict[str, tf.Tensor]:
        """Return what to report of the unit, float32 []."""
        return {}


RewardUnit = ValueUnit  # its earlier name, for users' code


class RunningError(ValueUnit):
    """The root of the running mean of the squared errors where that is above 1, otherwise 1."""

    def __init__(self) -> None:
        super().__init__()
        self._squared_error = tf.Variable(1.0, trainable=False, name="squared_error")
        self.learning = [self._squared_error]

    def squared(self, level: Level = None) -> tf.Tensor:
        """Return the running mean, at least 1."""
        return tf.maximum(self._squared_error, 1.0)

    def see_error(self, squared: tf.Tensor) -> None:
        """Move the running mean by a hundredth of the way; what is not finite does not count."""
        change = _PACE * (squared - self._squared_error)
        self._squared_error.assign_add(tf.where(tf.math.is_finite(change), change, 0.0))


class PopArt(ValueUnit):
    """The standard deviation of the newest value targets of a level."""

    def __init__(self, weights: tf.Variable, bias: tf.Variable):
        """Rescale `weights` [F, L] and `bias` [L] of the value head of L levels."""
        self._weights, self._bias = weights, bias
        self._levels = bias.shape[0]
        several = self._levels > 1
        self._moments = Moments(self._levels, "value_target", memory=MEMORY, apart=several)
        shape = [self._levels] if several else []
        self._mean = tf.Variable(tf.zeros(shape), trainable=False, name="value_mean")
        self._deviation = tf.Variable(tf.ones(shape), trainable=False, name="value_deviation")
        self.learning = self._moments.variables
        self.acting = [self._mean, self._deviation]

    def values(self, outputs: tf.Tensor, level: Level = None) -> tf.Tensor:
        """Return values in the unit of the rewards from the head's outputs [..., L]."""
        deviation, mean = (tf.cast(self._of(x, level), outputs.dtype) for x in self.acting[::-1])
        if self._levels == 1:
            return deviation * tf.squeeze(outputs, -1) + mean
        own = tf.one_hot(level, self._levels, dtype=outputs.dtype)
        return deviation * tf.reduce_sum(outputs * own, -1) + mean

    def _of(self, values: tf.Tensor, level: Level = None) -> tf.Tensor:
        """Return the values of the columns' levels, [B]; [] if there is one level."""
        return values if self._levels == 1 else tf.gather(values, level)

    def for_network(self, rewards: tf.Tensor) -> tf.Tensor:
        """Return sign(r) log(1 + |r|): a reward of 1000 beside features of 1 would be all there is.

        It is a fixed function, so that values stay what they are when the deviation changes.
        """
        return tf.sign(rewards) * tf.math.log1p(tf.abs(rewards))

    def squared(self, level: Level = None) -> tf.Tensor:
        """Return the variance of the value targets."""
        return tf.square(self._of(self._deviation, level))

    def scale_advantages(self, advantages: tf.Tensor, level: Level = None) -> tf.Tensor:
        """Return the advantages in deviations: they are differences of what values stand for."""
        return advantages / tf.cast(self._of(self._deviation, level), advantages.dtype)

    def see_targets(
        self, targets: tf.Tensor, live: tf.Tensor, exchange: GradientReducer, level: Level = None
    ) -> None:
        """Let mean and deviation follow the targets [T, B] where `live`; no value changes.

        Targets that are not finite, on any learner, change nothing.
        """
        counted = tf.reshape(live, [-1])
        if self._levels > 1:
            own = tf.one_hot(level, self._levels, on_value=True, off_value=False)  # [B, L]
            counted = tf.reshape(live[..., tf.newaxis] & own, [-1, self._levels])
        self._moments.update(tf.reshape(targets, [-1, 1]), counted, exchange)
        moments = self._moments.mean, self._moments.variance
        mean, variance = (tf.reshape(each, self._mean.shape) for each in moments)
        least = tf.maximum(tf.cast(LEAST, tf.float64), LEAST_SHARE * tf.abs(mean))
        deviation = tf.maximum(tf.sqrt(variance), least)
        known = self._moments.count > 0
        self._rescale(
            tf.where(known, tf.cast(mean, tf.float32), self._mean),
            tf.where(known, tf.cast(deviation, tf.float32), self._deviation),
        )

    def metrics(self) -> dict[str, tf.Tensor]:
        """Return the mean and the deviation; of several levels, those of all on average."""
        return {
            "value_mean": tf.reduce_mean(self._mean),
            "value_deviation": tf.reduce_mean(self._deviation),
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


def make_unit(name: str, head: snt.Linear) -> ValueUnit:
    """Return the unit of this name, one of NORMALIZATIONS, for a value head with its variables."""
    if name == "popart":
        return PopArt(head.w, head.b)
    if name == "error":
        return RunningError()
    if name == "none":
        return ValueUnit()
    raise ValueError(f"value normalization {name!r} is none of {', '.join(NORMALIZATIONS)}")


def cost(
    weight: float, squared: tf.Tensor, errors: tf.Tensor, reduce: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Return what errors [T, B] cost that `reduce` combines, in the unit of this square."""
    if squared.shape.rank:  # [B]: each column in that of its level
        return weight * reduce(errors / tf.cast(squared, errors.dtype))
    return weight / squared * tf.cast(reduce(errors), squared.dtype)


def errors(
    values: tf.Tensor,
    targets: tf.Tensor,
    unit: tf.Tensor | float = 1.0,
    *,
    huber_delta: float = math.inf,
    clipping: float = math.inf,
    before: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return half the squared errors of values [T, B], in the values' own unit.

    With a `huber_delta`, an error beyond it counts linearly: Huber's loss. With `clipping`, the
    error is the larger one of that of the values and that of values which stay within `clipping` of
    `before` [T, B], the values at the start of the update, as in PPO. So a value that has moved too
    far towards its target has no gradient. Both limits are in multiples of `unit`.
    """

    def half_squares(difference: tf.Tensor) -> tf.Tensor:
        if huber_delta == math.inf:
            return 0.5 * tf.square(difference)
        limit = huber_delta * tf.cast(unit, difference.dtype)
        inside = tf.minimum(tf.abs(difference), limit)
        return inside * (tf.abs(difference) - 0.5 * inside)

    found = half_squares(targets - values)
    if clipping == math.inf:
        return found
    if before is None:
        raise ValueError("clipping values needs `before`, the values at the start of the update")
    limit = clipping * tf.cast(unit, values.dtype)
    near = before + tf.clip_by_value(values - before, -limit, limit)
    return tf.maximum(found, half_squares(targets - near))
