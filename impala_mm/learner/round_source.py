"""The source of batches for an algorithm with rounds: each round is a batch.

A round whose actors have not sent all unrolls in time is padded to the full batch, since the update
is traced for fixed shapes.
"""

import tensorflow as tf

from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.learner.batch_source import decode_batch
from impala_mm.runtime import devices
from impala_mm.transport.rounds import Rounds


class RoundSource:
    """A source that returns each round as a batch, once it is over."""

    def __init__(
        self, rounds: Rounds, queue: tf.queue.QueueBase, codec: UnrollCodec, device: str = ""
    ):
        """Take unrolls from the queue; `device` is where batches go, if not to train."""
        self._rounds, self._queue = rounds, queue
        size, device = rounds.columns, device or devices.training_device()
        with tf.device("/CPU:0"):
            taken = tf.Variable(0, trainable=False, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
        def take(count: tf.Tensor) -> Batch:
            with tf.device("/CPU:0"):
                contents, versions = queue.dequeue_many(count)
                column = tf.range(size)
                # Padding repeats the round's unrolls, whose numbers are harmless in any formula.
                contents = tf.gather(contents, column % count)
                versions = tf.gather(versions, column % count)
                keys = taken.assign_add(size) - tf.range(size, 0, -1, tf.int64)
                fresh = column < count
            return decode_batch(codec, contents, versions, keys, fresh, device)

        self._take = take

    def next(self, timeout: float) -> Batch | None:
        """Return the first open round, or None if it lasts longer than `timeout`."""
        count = self._rounds.close(timeout)
        if count is None:
            return None
        if held := self._rounds.release():
            with tf.device("/CPU:0"):
                self._queue.enqueue_many(list(zip(*held, strict=True)))
        return self._take(tf.constant(count))

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Ignore priorities, since every unroll is used once."""
