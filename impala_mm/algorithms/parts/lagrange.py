"""Lagrange multipliers: costs that adjust themselves until a quantity is at its target.

A loss adds `cost x quantity`, with a plus if a larger cost lowers the quantity (a divergence), or
with a minus if it raises it (an entropy). `regularisers` and V-MPO's temperature use it:

    self._cost = Multiplier("kl_cost", target=0.01, initial=1.0, speed=0.01)     in make
    ...                      Variables: `self._cost.variables` are among the carried ones
    loss += self._cost.cost() * kl                                               in the loss
    self._cost.update(total, count, exchange)                              after the optimizer
"""

import math

import tensorflow as tf

from impala_mm.distributed.gradients import GradientReducer

LEAST, MOST = 1e-6, 1e6  # of a cost


class Multiplier:
    """The cost of a quantity, which grows while the quantity is on the wrong side of its target.

    A positive cost pushes in one direction only. Where the quantity is on the right side without
    help, the cost therefore falls to `LEAST`, and the target is a limit; elsewhere the quantity
    ends at the target. A target of 0 is one like any other.
    """

    def __init__(
        self, name: str, target: float, initial: float, speed: float, raises: bool = False
    ):
        """Start with the cost `initial`; `raises` says whether a larger cost raises the quantity.

        An update multiplies the cost by exp(`speed` x error) or divides it by that. The error is
        the distance of the quantity from its target in units of the target (of 1 if that is 0), at
        most 1.
        """
        if not math.isfinite(target):
            raise ValueError(f"the target of {name} is {target}: it must be a finite number")
        self._name, self._target = name, target
        self._speed = -speed if raises else speed
        start = math.log(min(max(initial, LEAST), MOST))
        self._log = tf.Variable(start, trainable=False, dtype=tf.float64, name=f"log_{name}")
        self.variables = [self._log]

    def cost(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Return the cost, [] of this type: from LEAST to MOST."""
        return tf.cast(tf.exp(self._log.read_value()), dtype)

    def update(self, total: tf.Tensor, count: tf.Tensor, exchange: GradientReducer) -> tf.Tensor:
        """Adjust the cost to the quantity's mean over all learners, and return this mean, float64.

        `total` is the sum of `count` values on this learner. Nothing changes if the mean is not
        finite; it is NaN if no learner has any values.
        """
        sums = tf.stack([tf.cast(total, tf.float64), tf.cast(count, tf.float64)])
        total, count = tf.unstack(exchange.mean(sums, name=self._name))
        mean = total / count
        error = (mean - self._target) / (abs(self._target) or 1.0)
        error = tf.where(tf.math.is_finite(mean), error, 0.0)
        moved = self._log + self._speed * tf.clip_by_value(error, -1.0, 1.0)
        self._log.assign(tf.clip_by_value(moved, math.log(LEAST), math.log(MOST)))
        return mean


class Cost:
    """The weight of a quantity in the loss: fixed, or a multiplier that holds it at a target."""

    def __init__(
        self,
        name: str,
        cost: float,
        target: float,
        *,
        initial: float,
        speed: float,
        raises: bool = False,
    ):
        """Use the fixed `cost` if the target is infinite, and otherwise begin with it.

        If it is 0, a multiplier begins with `initial`. The other arguments are those of
        `Multiplier`.
        """
        self._name, self._fixed = name, cost
        self._multiplier: Multiplier | None = None
        if math.isfinite(target):
            self._multiplier = Multiplier(name, target, cost or initial, speed, raises)
        self.variables = self._multiplier.variables if self._multiplier else []

    def read(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Return the cost of this update, []."""
        if self._multiplier:
            return self._multiplier.cost(dtype)
        return tf.constant(self._fixed, dtype)

    def update(self, sums: tf.Tensor, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Adjust a multiplier by the quantity's sum and count, [2]; return its cost as a metric."""
        if not self._multiplier:
            return {}
        metrics = {self._name: self._multiplier.cost()}
        total, count = tf.unstack(sums)
        self._multiplier.update(total, count, exchange)
        return metrics
