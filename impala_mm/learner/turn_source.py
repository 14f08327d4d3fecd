"""The sources of a run in which actor and learner take turns, for --deterministic_run.

    actor plays E unrolls  ->  learner makes all updates that they allow  ->  actor plays E more ...

Each turn is a round of `transport.rounds`: the policy after those updates plays it. No thread
prepares anything, so no result depends on which of two threads is faster.
"""

import time
from collections import deque

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.learner.batch_source import decode_batch
from impala_mm.runtime import devices
from impala_mm.transport.rounds import Rounds


class TurnQueue:
    """The unrolls of the actor's last turn that are not used yet; the next turn begins after them.

    An unroll is its bytes and the policy version that played it.
    """

    def __init__(self, rounds: Rounds, queue: tf.queue.QueueBase):
        """Take unrolls from the server's queue."""
        self._rounds, self._unused = rounds, deque[tuple[bytes, int]]()

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
        def take(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.device("/CPU:0"):
                return tuple(queue.dequeue_many(count))

        self._take = take

    def take_within(self, timeout: float, most: int) -> list[tuple[bytes, int]]:
        """Return 1 to `most` unrolls, or none if the actor's turn lasts longer than `timeout`."""
        if not self._unused:
            count = self._rounds.close(timeout)
            if count is None:
                return []
            contents, versions = self._take(tf.constant(count))
            self._unused += zip(contents.numpy().tolist(), versions.numpy().tolist(), strict=True)
        return [self._unused.popleft() for _ in range(min(most, len(self._unused)))]


class TurnSource:
    """A source of batches of new unrolls, each used once."""

    def __init__(self, turns: TurnQueue, codec: UnrollCodec, batch_size: int, device: str = ""):
        """Take unrolls from `turns`; `device` is where batches go, if not to train."""
        self._turns, self._batch_size = turns, batch_size
        self._collected: list[tuple[bytes, int]] = []  # for the next batch
        self._taken = 0  # unrolls of all batches
        device = device or devices.training_device()

        @tf.function(autograph=False)
        def decode(contents: tf.Tensor, versions: tf.Tensor, keys: tf.Tensor) -> Batch:
            fresh = tf.fill([batch_size], True)
            return decode_batch(codec, contents, versions, keys, fresh, device)

        self._decode = decode

    def next(self, timeout: float) -> Batch | None:
        """Return a batch of the oldest unrolls, or None after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while missing := self._batch_size - len(self._collected):
            left = max(deadline - time.monotonic(), 0.0)
            found = self._turns.take_within(left, missing)
            if not found:
                return None
            self._collected += found
        contents, versions = zip(*self._collected, strict=True)
        self._collected = []
        first, self._taken = self._taken, self._taken + self._batch_size
        with tf.device("/CPU:0"):
            keys = tf.constant(np.arange(first, self._taken))
            return self._decode(tf.constant(contents), tf.constant(versions, tf.int64), keys)

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Ignore priorities, since every unroll is used once."""
