"""The error of a value function, and the unit in which it counts in the loss.

Where returns are large (up to 500 in CartPole), the gradient of squared errors is much larger than
the policy's in the weights that both share, and changes the policy at random. In CartPole, the
off-policyness of IMPALA is 0.3 nats per action with errors in units of the reward, and 0.01 with
errors in units of their own running mean. So an algorithm makes one `ValueUnit` by
--value_normalization:

    self._unit = value_units.make_unit(config.value_normalization, self._value_head)
    self._unit.for_network(reward)                              what the network reads
    values = self._unit.values(outputs)                         wherever the head's outputs are used
    self._unit.see_targets(targets, live, exchange)             before the loss
    loss = cost / self._unit.squared() * mean of value_units.errors(values, targets, ...)
    self._unit.see_error(mean squared error)                    after the loss

`popart.PopArt` is the unit that also moves the head's outputs.
"""

import math
from typing import Protocol

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts.popart import PopArt
from impala_mm.distributed.gradients import GradientReducer

NORMALIZATIONS = ("error", "popart", "none")
_PACE = 0.01  # weight of each batch in the running mean of squared errors


class ValueUnit(Protocol):
    """The unit in which a value head's outputs and its errors are; equal on all learners."""

    learning: list[tf.Variable]  # what only learners need; it is carried
    acting: list[tf.Variable]  # what `values` reads; it is carried, too, and belongs to the weights

    def values(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return values in the unit of the rewards from the head's outputs [...]."""

    def for_network(self, rewards: tf.Tensor) -> tf.Tensor:
        """Return the rewards [...] that the network reads: moderate, if they may be large."""

    def squared(self) -> tf.Tensor:
        """Return the square of the unit, float32 []: what squared errors are divided by."""

    def scale_advantages(self, advantages: tf.Tensor) -> tf.Tensor:
        """Return advantages [T, B] in the unit in which they weigh."""

    def see_targets(self, targets: tf.Tensor, live: tf.Tensor, exchange: GradientReducer) -> None:
        """Learn from the value targets [T, B] of a batch where `live`, before they are used."""

    def see_error(self, squared: tf.Tensor) -> None:
        """Learn from the mean squared error of a batch, float32 [], that all learners share."""

    def metrics(self) -> dict[str, tf.Tensor]:
        """Return what to report of the unit, float32 []."""


def make_unit(name: str, head: snt.Linear) -> ValueUnit:
    """Return the unit of this name, one of NORMALIZATIONS, for a value head with its variables."""
    if name == "popart":
        return PopArt(head.w, head.b)
    if name == "error":
        return RunningError()
    if name == "none":
        return RewardUnit()
    raise ValueError(f"value normalization {name!r} is none of {', '.join(NORMALIZATIONS)}")


class RewardUnit:
    """The unit of the rewards: nothing is normalised."""

    def __init__(self) -> None:
        self.learning: list[tf.Variable] = []
        self.acting: list[tf.Variable] = []

    def values(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs."""
        return outputs

    def for_network(self, rewards: tf.Tensor) -> tf.Tensor:
        """Return the rewards."""
        return rewards

    def squared(self) -> tf.Tensor:
        """Return 1."""
        return tf.ones([])

    def scale_advantages(self, advantages: tf.Tensor) -> tf.Tensor:
        """Return the advantages."""
        return advantages

    def see_targets(self, targets: tf.Tensor, live: tf.Tensor, exchange: GradientReducer) -> None:
        """Do nothing."""

    def see_error(self, squared: tf.Tensor) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, tf.Tensor]:
        """Return nothing."""
        return {}


class RunningError(RewardUnit):
    """The root of the running mean of the squared errors where that is above 1, otherwise 1."""

    def __init__(self) -> None:
        super().__init__()
        self._squared_error = tf.Variable(1.0, trainable=False, name="squared_error")
        self.learning = [self._squared_error]

    def squared(self) -> tf.Tensor:
        """Return the running mean, at least 1."""
        return tf.maximum(self._squared_error, 1.0)

    def see_error(self, squared: tf.Tensor) -> None:
        """Move the running mean by a hundredth of the way; what is not finite does not count."""
        change = _PACE * (squared - self._squared_error)
        self._squared_error.assign_add(tf.where(tf.math.is_finite(change), change, 0.0))


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
