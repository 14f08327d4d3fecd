"""Small unrolls made in a test, as bytes, and a queue of them."""

import threading

import in_process
import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Batch, Entry, Unroll, UnrollCodec, UnrollSpec
from impala_mm.replay.source import QueueClosed
from impala_mm.replay.store import unpack

LENGTH = 4
_SCALARS = [tf.TensorSpec([], t) for t in (tf.int32, tf.float32, tf.bool, tf.bool)]
SPEC = UnrollSpec(
    LENGTH, 1, Entry(*_SCALARS, tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.bool), ()), ()
)
CODEC = UnrollCodec(SPEC)


def unroll(number, resets=0):
    """Return an unroll whose numbers are all this one, and whose first new entries are resets."""

    def fill(spec):
        shown = number if spec.dtype.is_floating else 0
        return np.full([LENGTH + 1, *spec.shape], shown, spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(fill, SPEC.step)
    entries.first[1 : 1 + resets] = True
    return in_process.encoded(CODEC, Unroll(entries, ()))


def decode(columns):
    """Return the batch of these columns, as arrays."""
    rows = np.stack(
        [np.frombuffer(unpack(content, CODEC.size), np.uint8) for content in columns.contents]
    )
    entries, start = CODEC.arrays(rows)
    entries = tf.nest.map_structure(lambda leaf: np.swapaxes(leaf, 0, 1), entries)
    return Batch(entries, start, columns.keys, columns.weights, columns.versions, columns.fresh)


class Actors:
    """A queue that a test fills; unroll number n has version n."""

    def __init__(self):
        self._waiting, self._changed, self._closed = [], threading.Condition(), False
        self.taken = 0

    def put(self, *numbers, **how):
        """Let unrolls with these numbers arrive."""
        with self._changed:
            self._waiting += [
                (unroll(number, **how), int(np.nan_to_num(number))) for number in numbers
            ]
            self._changed.notify_all()

    def close(self):
        """Let the run end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def size(self):
        """Return how many unrolls wait."""
        return len(self._waiting)

    def take(self, number):
        """Wait for unrolls, as `UnrollQueue.take` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) >= number)
            if self._closed:
                raise QueueClosed
            found, self._waiting = self._waiting[:number], self._waiting[number:]
            self.taken += number
        return [content for content, _ in found], [version for _, version in found]
