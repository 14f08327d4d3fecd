"""Parts of batches put together anew: what a batch source needs to mix new and replayed unrolls.

All functions take and return batches of NumPy arrays or of tensors. An array in main memory is
what a source stores; `learner.own_source` copies what a source returns to the training device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Batch


def to_numpy(batch: Batch) -> Batch:
    """Return a copy of a batch as NumPy arrays, which later batches do not change."""
    return tf.nest.map_structure(np.array, batch)


def columns(batch: Batch, chosen: Any) -> Batch:
    """Return the columns of a batch with these numbers, int [N], in this order."""

    def choose(leaf: Any, axis: int) -> Any:
        if tf.is_tensor(leaf):
            return tf.gather(leaf, chosen, axis=axis)
        return np.take(leaf, np.asarray(chosen), axis=axis)

    return _by_axis(choose, batch)


def join(parts: Sequence[Batch]) -> Batch:
    """Return one batch with the columns of all these batches, in their order."""

    def concatenate(*leaves: Any, axis: int) -> Any:
        if any(tf.is_tensor(leaf) for leaf in leaves):
            return tf.concat(leaves, axis)
        return np.concatenate(leaves, axis)

    return _by_axis(lambda *args: concatenate(*args[:-1], axis=args[-1]), *parts)


def replayed(batch: Batch) -> Batch:
    """Return a batch whose columns do not count as played, since they were counted before."""
    return batch._replace(fresh=np.zeros_like(np.asarray(batch.fresh)))


def padded(batch: Batch, size: int) -> Batch:
    """Return a batch of `size` columns: repeat the last one with weight 0 as often as needed."""
    number = batch.weight.shape[0]
    result = columns(batch, np.minimum(np.arange(size), number - 1))
    return result._replace(weight=np.asarray(result.weight) * (np.arange(size) < number))


def _by_axis(function: Callable[..., Any], *batches: Batch) -> Batch:
    """Return a batch of function(*leaves, axis) for each leaf; `axis` is that of the columns."""

    def along(axis: int, *nests: Any) -> Any:
        return tf.nest.map_structure(lambda *leaves: function(*leaves, axis), *nests)

    unrolls = along(1, *(batch.unrolls for batch in batches))
    return Batch(
        unrolls, *(along(0, *fields) for fields in zip(*(b[1:] for b in batches), strict=True))
    )
