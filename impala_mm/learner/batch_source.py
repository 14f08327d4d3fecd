"""Where a learner's batches come from. `learner` asks for the next; this file makes it ready."""

import queue
import threading
from typing import Protocol

import tensorflow as tf

from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.runtime import devices, thread_names
from impala_mm.transport.server import Server


class BatchSource(Protocol):
    """Where batches come from: today the actors' queue; later replay, or a mix.

    Of several learners `next` is asked a step ahead, by another thread than `feedback`.
    """

    def next(self, timeout: float) -> Batch | None:
        """The next batch, or None where there is none within `timeout` seconds."""

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """What the algorithm thinks of the unrolls with these keys."""


class QueueSource:
    """Batches of the newest unrolls, each used once.

    While one is trained on, the next is made and laid where training reads it: the GPU, if any.
    """

    def __init__(self, server: Server, codec: UnrollCodec, batch_size: int):
        self._queue, self._codec, self._batch_size = server.queue, codec, batch_size
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
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
        thread_names.name_thread("prefetch")
        size, device = self._batch_size, devices.training_device()
        with tf.device("/CPU:0"):
            taken = tf.Variable(0, trainable=False, dtype=tf.int64)

        @tf.function(autograph=False)
        def take() -> Batch:
            with tf.device("/CPU:0"):
                contents, versions = self._queue.dequeue_many(size)
                unrolls = self._codec.decode(contents)
                keys = taken.assign_add(size) - tf.range(size, 0, -1, tf.int64)
                weight, fresh = tf.ones([size]), tf.fill([size], True)
            # In one graph with the copy TensorFlow lays what is copied in pinned memory.
            with tf.device(device):
                entries, start = tf.nest.map_structure(tf.identity, unrolls)
            # Who counts steps by it while the GPU trains would have to wait for the GPU.
            entries = entries._replace(first=unrolls[0].first)
            return Batch(entries, start, keys, weight, versions, fresh)

        while True:
            try:
                batch = take()
            except (tf.errors.OutOfRangeError, tf.errors.CancelledError):  # the run has ended
                return
            except BaseException as error:
                self._failure = error
                return
            self._ready.put(batch)
            self._ready.join()  # one ahead, no more: unrolls age while they wait
