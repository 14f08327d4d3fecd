"""Embedding: features of choices among many, which are read as their numbers.

It computes what a linear layer would of the choices' one-hot vectors, without making these. A spec
of an observation describes such choices if it has an attribute `choices`: the K numbers of choices
of an int32 tensor [K].
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf


class Rows(NamedTuple):
    """The rows of an `Embedding`'s table that belong to observations."""

    rows: Any  # int32 [N, K]


class Embedding(snt.Module):
    """A torso of K choices: [N, K] -> [N, size], the sum of a learnt vector for each choice."""

    def __init__(self, choices: Sequence[int], size: int):
        super().__init__(name="embedding")
        self._begins = np.cumsum([0, *choices[:-1]]).astype(np.int32)  # of each choice's rows
        start = snt.initializers.TruncatedNormal(stddev=len(choices) ** -0.5)  # of the sum: 1
        self._table = tf.Variable(start([sum(choices), size], tf.float32), name="table")

    def arrange(self, numbers: tf.Tensor) -> Rows:
        """Return numbers [N, K], each counted from 0, as the table's rows."""
        return Rows(tf.cast(numbers, tf.int32) + self._begins)

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the features [N, size] of rows [N, K]."""
        return tf.reduce_sum(_gather(tf.convert_to_tensor(self._table), rows), 1)


@tf.custom_gradient
def _gather(table: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return the rows of a table; the table's gradient is a dense tensor, as all others are."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        flat = tf.reshape(upstream, [-1, upstream.shape[-1]])
        indices = tf.reshape(rows, [-1])
        return tf.math.unsorted_segment_sum(flat, indices, table.shape[0]), None

    return tf.gather(table, rows), gradient
