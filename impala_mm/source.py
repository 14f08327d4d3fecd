"""Where a learner's batches come from. `learner` asks for the next; this file makes it ready."""

import queue
import threading
from typing import Any, Protocol

import tensorflow as tf

from impala_mm import threads
from impala_mm.server import Server
from impala_mm.trajectory import Batch, Codec


class Source(Protocol):
    """Where batches come from: today the actors' queue; later replay, or a mix.

    `next` is asked a step ahead, by another thread than `feedback`.
    """

    def next(self, timeout: float) -> Batch | None:
        """The next batch, or None where there is none within `timeout` seconds."""

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """What the algorithm thinks of the unrolls with these keys."""


class QueueSource:
    """Batches of the newest unrolls, each used once.

    While one is trained on, the next is made and laid where training reads it: the GPU, if any.
    """

    def __init__(self, server: Server, codec: Codec, batch_size: int):
        self._queue, self._codec, self._batch_size = server.queue, codec, batch_size
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self._keys = 0
        self._failure: BaseException | None = None
        threading.Thread(target=self._prefetch, name="prefetch", daemon=True).start()

    def next(self, timeout: float) -> Batch | None:
        """The oldest batch of the queue."""
        if self._failure:
            raise self._failure
        try:
            batch = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        self._ready.task_done()
        return batch

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Every unroll is used once, whatever its priority."""

    def _prefetch(self) -> None:
        threads.name_this("prefetch")
        device = "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0"

        @tf.function(autograph=False)
        def take() -> tuple[Any, Any, tf.Tensor]:
            with tf.device("/CPU:0"):
                contents, versions = self._queue.dequeue_many(self._batch_size)
                unrolls = self._codec.decode(contents)
            with tf.device(device):
                return *tf.nest.map_structure(tf.identity, unrolls), versions

        while True:
            try:
                entries, start, versions = take()
            except (tf.errors.OutOfRangeError, tf.errors.CancelledError):  # the run has ended
                return
            except BaseException as error:
                self._failure = error
                return
            size = self._batch_size
            keys = tf.range(self._keys, self._keys + size, dtype=tf.int64)
            self._keys += size
            fresh = tf.ones([size], tf.bool)
            self._ready.put(Batch(entries, start, keys, tf.ones([size]), versions, fresh))
            self._ready.join()  # one ahead, no more: unrolls age while they wait
