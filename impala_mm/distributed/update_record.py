"""Measurements of one update: norms of its gradients, clipping, seconds of waiting.

`GradientReducer` writes them, and `TrainStep` reads them at the end of the update. They live in
variables and not in tensors, since an algorithm may average gradients within `tf.cond`,
`tf.while_loop` or a tf.function of its own: the tensors of such an inner graph cannot be used
outside it.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class UpdateSummary(NamedTuple):
    """The record of a complete update."""

    total_norm: float  # sum of the averaged gradients' norms: not finite if one of them is not
    gradients: float  # number of averaged gradients
    clipped: float  # number of those that clipping changed
    wait_seconds: float  # seconds of waiting for the other learners' gradients
    own_faults: float  # number of this learner's own gradients that were not finite
    largest_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether all averaged gradients are finite, the same on all learners."""
        return math.isfinite(self.total_norm)

    @property
    def grad_norm(self) -> float:
        """The largest norm; NaN if no gradient was averaged."""
        if not self.is_finite:
            return self.total_norm
        return self.largest_norm if self.gradients else math.nan

    @property
    def clipped_share(self) -> float:
        """The share of gradients that clipping changed; NaN if no gradient was averaged."""
        return self.clipped / self.gradients if self.gradients else math.nan


class UpdateRecord:
    """The record of one update.

    Make it outside any tf.function, and keep it as long as a graph that writes to it is used.
    """

    def __init__(self) -> None:
        with tf.device("/CPU:0"):
            # The first five fields of UpdateSummary, which are sums.
            self._sums = tf.Variable(tf.zeros([5]), trainable=False, name="exchange_sums")
            self._largest = tf.Variable(0.0, trainable=False, name="exchange_largest_norm")
        self.variables = (self._sums, self._largest)

    def clear(self) -> None:
        """Start the record of the next update."""
        with tf.device("/CPU:0"):
            self._sums.assign(tf.zeros([5]))
            self._largest.assign(0.0)

    def add_gradient(self, norm: tf.Tensor, clipped: tf.Tensor) -> tf.Tensor:
        """Add an averaged gradient; return whether it and all earlier ones are finite, bool []."""
        with tf.device("/CPU:0"):
            sums = self._sums.assign_add(tf.stack([norm, 1.0, clipped, 0.0, 0.0]))
            self._largest.assign(tf.maximum(self._largest, norm))
            return tf.math.is_finite(sums[0])

    def add_wait(self, seconds: tf.Tensor) -> None:
        """Add the seconds, float32 [], of one exchange with the other learners."""
        with tf.device("/CPU:0"):
            self._sums.assign_add(tf.stack([0.0, 0.0, 0.0, seconds, 0.0]))

    def add_own(self, is_finite: tf.Tensor) -> None:
        """Add whether this learner's own gradient was finite, where their average is not."""
        with tf.device("/CPU:0"):
            fault = 1.0 - tf.cast(is_finite, tf.float32)
            self._sums.assign_add(tf.stack([0.0, 0.0, 0.0, 0.0, fault]))

    def is_finite(self) -> tf.Tensor:
        """Return whether all gradients of this update so far are finite, bool []."""
        with tf.device("/CPU:0"):
            return tf.math.is_finite(self._sums.read_value()[0])

    def read(self) -> list[tf.Tensor]:
        """Return the record as float32 tensors [N], of which `summarize` makes a summary."""
        with tf.device("/CPU:0"):
            return [self._sums.read_value(), self._largest.read_value()[tf.newaxis]]


def summarize(values: np.ndarray) -> UpdateSummary:
    """Return the summary of the values, float32 [N], that `UpdateRecord.read` returned."""
    return UpdateSummary(*values.tolist())
