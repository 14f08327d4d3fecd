"""Measurements of one update: norms of its gradients, clipping, seconds of waiting.

`GradientReducer` writes it and `TrainStep` reads it at the end of the update. It lives in variables
and not in tensors, since an algorithm may average gradients within `tf.cond`, `tf.while_loop` or a
tf.function of its own: the tensors of such an inner graph cannot be used outside it.
"""

from typing import NamedTuple

import tensorflow as tf


class UpdateSummary(NamedTuple):
    """The record of a complete update, as float32 scalars."""

    grad_norm: tf.Tensor  # largest norm of an averaged gradient; NaN if none was averaged
    clipped_share: tf.Tensor  # share of the averaged gradients that clipping changed; NaN likewise
    wait_seconds: tf.Tensor
    total_norm: tf.Tensor  # sum of all norms: not finite if one of them is not
    gradients: tf.Tensor  # number of averaged gradients


class UpdateRecord:
    """The record of one update.

    Make it outside any tf.function, and keep it as long as a graph that writes to it is used.
    """

    def __init__(self) -> None:
        with tf.device("/CPU:0"):
            # Sum of the norms, number of averaged gradients, number of those that were clipped.
            self._totals = tf.Variable(tf.zeros([3]), trainable=False, name="exchange_totals")
            self._largest = tf.Variable(0.0, trainable=False, name="exchange_largest_norm")
            self._waited = tf.Variable(0.0, trainable=False, name="exchange_waited")

    def clear(self) -> None:
        """Start the record of the next update."""
        with tf.device("/CPU:0"):
            self._totals.assign(tf.zeros([3]))
            self._largest.assign(0.0)
            self._waited.assign(0.0)

    def add_gradient(self, norm: tf.Tensor, clipped: tf.Tensor) -> tf.Tensor:
        """Add an averaged gradient; return whether it and all earlier ones are finite, bool []."""
        with tf.device("/CPU:0"):
            added = tf.stack([norm, 1.0, clipped])
            total = self._totals.assign_add(added)[0]
            self._largest.assign(tf.maximum(self._largest, norm))
            return tf.math.is_finite(total)

    def add_wait(self, seconds: tf.Tensor) -> None:
        """Add the seconds, float32 [], of one exchange with the other learners."""
        with tf.device("/CPU:0"):
            self._waited.assign_add(seconds)

    def is_finite(self) -> tf.Tensor:
        """Return whether all gradients of this update so far are finite, bool []."""
        with tf.device("/CPU:0"):
            return tf.math.is_finite(self._totals.read_value()[0])

    def summary(self) -> UpdateSummary:
        """Return the record of the update."""
        with tf.device("/CPU:0"):
            norms, gradients, clipped = tf.unstack(self._totals.read_value())
            largest = tf.where(tf.math.is_finite(norms), self._largest, norms)
            return UpdateSummary(
                grad_norm=tf.where(gradients > 0, largest, float("nan")),
                clipped_share=clipped / gradients,
                wait_seconds=self._waited.read_value(),
                total_norm=norms,
                gradients=gradients,
            )
