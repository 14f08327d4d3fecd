"""Batches taken apart and put together: what an algorithm's own source needs to replay unrolls.

All functions work on batches of NumPy arrays or of tensors; those that change a batch in place need
arrays. A replay buffer is a batch of arrays, `zeros(unroll, capacity)`, whose columns are unrolls:
`assign` stores new ones, `columns` draws some, `join` mixes them with others.
"""

import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Batch, UnrollSpec, leaf_names


def zeros(unroll: UnrollSpec, size: int) -> Batch:
    """Return a batch of `size` columns of zeros, as arrays."""
    return tf.nest.map_structure(
        lambda spec: np.zeros(spec.shape, spec.dtype.as_numpy_dtype), specs(unroll, size)
    )


def specs(unroll: UnrollSpec, size: int, steps: int | None = None) -> Batch:
    """Return the specs of a batch of `size` columns, of all entries of an unroll or of `steps`."""
    steps = steps or unroll.length + unroll.overlap

    def make(spec: tf.TensorSpec, *leading: int) -> tf.TensorSpec:
        return tf.TensorSpec([*leading, size, *spec.shape], spec.dtype)

    return Batch(
        tf.nest.map_structure(lambda spec: make(spec, steps), unroll.step),
        tf.nest.map_structure(make, unroll.start),
        key=tf.TensorSpec([size], tf.int64),
        weight=tf.TensorSpec([size], tf.float32),
        version=tf.TensorSpec([size], tf.int64),
        fresh=tf.TensorSpec([size], tf.bool),
    )


def to_numpy(batch: Batch) -> Batch:
    """Return a copy of a batch as arrays."""
    return tf.nest.map_structure(np.array, batch)


def columns(batch: Batch, chosen: Any) -> Batch:
    """Return a copy of the columns with these numbers, int [N], in this order."""

    def choose(leaf: Any, axis: int) -> Any:
        if tf.is_tensor(leaf):
            return tf.gather(leaf, chosen, axis=axis)
        return np.take(leaf, np.asarray(chosen), axis=axis)

    return _by_axis(choose, batch)


def assign(batch: Batch, places: Any, new: Batch) -> None:
    """Overwrite the columns of a batch of arrays at these places, int [N], with N new ones."""

    def write(leaf: np.ndarray, values: Any, axis: int) -> None:
        leaf[(slice(None),) * axis + (np.asarray(places),)] = np.asarray(values)

    _by_axis(write, batch, new)


def join(parts: Sequence[Batch]) -> Batch:
    """Return one batch with the columns of all these batches, in their order."""

    def concatenate(*leaves_and_axis: Any) -> Any:
        *leaves, axis = leaves_and_axis
        if any(tf.is_tensor(leaf) for leaf in leaves):
            return tf.concat(leaves, axis)
        return np.concatenate(leaves, axis)

    return _by_axis(concatenate, *parts)


def replayed(batch: Batch) -> Batch:
    """Return a batch whose columns do not count as played, since they were counted before."""
    return batch._replace(fresh=np.zeros_like(np.asarray(batch.fresh)))


def padded(batch: Batch, size: int) -> Batch:
    """Return a batch of `size` columns: repeat the last one with weight 0 as often as needed.

    Raises ValueError if the batch has no columns, or more than `size`.
    """
    number = len(batch.weight)
    if not 1 <= number <= size:
        raise ValueError(f"a batch of {number} columns cannot be padded to {size}")
    result = columns(batch, np.minimum(np.arange(size), number - 1))
    weight = np.where(np.arange(size) < number, np.asarray(result.weight), 0)
    return result._replace(weight=weight.astype(np.float32))


def without_nan_in_padding(batch: Batch) -> Batch:
    """Return a batch with 0 in place of NaN and infinity in its columns of weight 0.

    A network that reads NaN has NaN as gradients of its weights, even if the loss ignores what it
    makes of it.
    """
    used = np.asarray(batch.weight) != 0
    if used.all():
        return batch

    def clean(leaf: Any, axis: int) -> Any:
        if not tf.as_dtype(leaf.dtype).is_floating:
            return leaf
        keeps = used.reshape([-1] + [1] * (len(leaf.shape) - axis - 1))
        return tf.where(tf.math.is_finite(leaf) | keeps, leaf, tf.zeros([], leaf.dtype))

    return _by_axis(clean, batch)


def save(batch: Batch, folder: Path) -> None:
    """Write each array of a batch to a file in this folder, for `restore`."""
    for path, leaf in _files(batch, folder):
        np.save(path, leaf)


def restore(batch: Batch, folder: Path) -> None:
    """Fill a batch of arrays with what `save` wrote; raises ValueError if the shapes differ."""
    pairs = [(path, leaf, np.load(path, mmap_mode="r")) for path, leaf in _files(batch, folder)]
    for path, leaf, saved in pairs:
        if (leaf.shape, leaf.dtype) != (saved.shape, saved.dtype):
            raise ValueError(
                f"{path.name} has shape {saved.shape} and type {saved.dtype}, but is now needed "
                f"with shape {leaf.shape} and type {leaf.dtype}"
            )
    for _, leaf, saved in pairs:
        leaf[...] = saved


def _files(batch: Batch, folder: Path) -> list[tuple[Path, Any]]:
    """Return the file of each leaf in a folder, and the leaf."""
    names = leaf_names(batch, "batch", ".")
    leaves = tf.nest.flatten(batch)
    return [(folder / f"{name}.npy", leaf) for name, leaf in zip(names, leaves, strict=True)]


def _by_axis(function: Callable[..., Any], *parts: Batch) -> Batch:
    """Return the batch of function(*leaves, axis) for each leaf; `axis` is that of the columns."""

    def along(axis: int, *nests: Any) -> Any:
        return tf.nest.map_structure(lambda *leaves: function(*leaves, axis), *nests)

    unrolls = along(1, *(batch.unrolls for batch in parts))
    others = zip(*(batch[1:] for batch in parts), strict=True)
    return Batch(unrolls, *(along(0, *fields) for fields in others))


class OneAhead:
    """A place for the next batch, and for the error of what prepares it."""

    def __init__(self) -> None:
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self._failure: BaseException | None = None

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None after `timeout` seconds; raise an error of `fail`."""
        if self._failure:
            raise self._failure
        try:
            batch = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        self._ready.task_done()
        return batch

    def put(self, batch: Batch) -> None:
        """Offer a batch, and wait until it is taken: policy lag grows while unrolls wait."""
        self._ready.put(batch)
        self._ready.join()

    def fail(self, error: BaseException) -> None:
        """Let each later call of `next` raise this error."""
        self._failure = error
