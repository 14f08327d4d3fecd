"""The core states of all environments for which a learner chooses actions, in tables on a device.

`batched_inference` reads and writes the rows of the environments in a batch.
"""

from typing import Any

import numpy as np
import tensorflow as tf


class StateTables:
    """A table for each part of the core state, with a row for each environment."""

    def __init__(self, initial: Any, device: str):
        """Make empty tables for states like `initial`, an episode's first, a nest of [1, ...]."""
        self._structure, self._like = initial, tf.nest.flatten(initial)
        with tf.device(device):
            self._tables = [
                tf.Variable(_as_stored(part)[:0], False, shape=[None, *_as_stored(part).shape[1:]])
                for part in self._like
            ]
        self._free: list[int] = []
        self._released: list[np.ndarray] = []  # rows that the running batch may still write
        self.rows = 0  # rows in use or free

    def __len__(self) -> int:
        return len(self._tables)

    def allocate(self, count: int) -> np.ndarray:
        """Return `count` free rows, int32, some of them new; call `grow` before they are used."""
        more = count - len(self._free)
        if more > 0:
            self._free += range(self.rows, self.rows + more)
            self.rows += more
        rows, self._free = self._free[:count], self._free[count:]
        return np.array(rows, np.int32)

    def release(self, rows: np.ndarray) -> None:
        """Give up rows, even if the running batch may write them; `recycle` makes them free."""
        self._released.append(rows)

    def recycle(self) -> None:
        """Put released rows on the free list; no batch may run."""
        while self._released:
            self._free += self._released.pop().tolist()

    def grow(self) -> None:
        """Make room for all rows that were allocated."""
        for table in self._tables:
            missing = self.rows - int(table.shape[0] or tf.shape(table)[0])
            if missing > 0:
                more = tf.zeros([missing, *table.shape[1:]], table.dtype)
                table.assign(tf.concat([table, more], 0))

    def read(self, rows: tf.Tensor) -> Any:
        """Return the core states of these rows in a graph, a nest of [M, ...]."""
        parts = [
            _from_stored(tf.gather(table, rows), part)
            for table, part in zip(self._tables, self._like, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, parts)

    def write(self, rows: tf.Tensor, states: Any) -> list[tf.Tensor]:
        """Write core states [M, ...] to these rows in a graph; return the operations."""
        return [
            table.scatter_update(tf.IndexedSlices(_as_stored(part), rows))
            for table, part in zip(self._tables, tf.nest.flatten(states), strict=True)
        ]


def _as_stored(part: tf.Tensor) -> tf.Tensor:
    """Return a part of states [N, ...] in its table's format: integers as float32, bit for bit.

    TensorFlow would scatter a GPU's table of integers on the CPU, and copy all of it for that.
    """
    size = part.shape[1:].num_elements() * part.dtype.size
    if not part.dtype.is_integer or part.dtype.size > 4 or size % 4:
        return part
    if part.dtype.size == 4:
        return tf.bitcast(part, tf.float32)
    return tf.bitcast(tf.reshape(part, [-1, size // 4, 4 // part.dtype.size]), tf.float32)


def _from_stored(stored: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return stored states [N, ...] in the type and shape of `like`."""
    if stored.dtype == like.dtype:
        return stored
    return tf.reshape(tf.bitcast(stored, like.dtype), [-1, *like.shape[1:]])
