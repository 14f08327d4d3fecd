"""The source of a learner's batches, which prepares the next batch while the learner trains."""

import threading
from typing import Any, Protocol

import tensorflow as tf

from impala_mm.data.one_ahead import OneAhead
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec
from impala_mm.replay.source import QueueClosed
from impala_mm.runtime import devices, thread_names
from impala_mm.transport.server import Server


class BatchSource(Protocol):
    """A source of batches, such as the actors' queue or a replay buffer.

    An algorithm may define a method `source(fresh)`, which returns its own: `fresh` is the source
    of the actors' new unrolls, --batch_size of them in each batch. It may ask `fresh` for several
    batches, for none, or mix them with its own; `impala_mm.data.batches` does so column by column.

      * All its batches have the same shapes, since an update is compiled for them. They consist of
        tensors or NumPy arrays. In columns of weight 0, NaN and infinity are replaced by 0.
      * `Batch.fresh` says which columns count as played. An unroll that is used several times
        counts the first time only (`batches.replayed` marks the others). If all batches come from
        recorded data, a run ends at --total_environment_frames only if some of them count.
      * One thread at a time calls its methods. `feedback` for a batch is called before the next
        call of `next`, and with several learners before the one after it: they ask for one batch
        ahead, while they train on the previous one.
      * With the method `take_stored_steps()`, the steps that it returns, those of unrolls that were
        stored since the last call and will be fresh in no batch, count as played, too.
      * With the method `metrics()`, the numbers that it returns by key are added to those of each
        update.
      * With the method `filling()`, the unrolls that it has and those that its first batch needs,
        both 0 once there was one, are shown while the learner waits for it.
      * With the methods `save(folder)` and `restore(folder)`, its contents are saved with every
        checkpoint, by each learner for itself, and restored when the run is resumed. `folder` is
        a `pathlib.Path`; training pauses while `save` writes, so that no copy in memory is needed.
        What was returned but not yet trained on is lost, like the contents of the actors' queue.
        With the method `make_older(updates)`, too, that number is subtracted from the versions of
        what was restored from another run (--reload_replay), since a run counts from 0.
      * If the algorithm has `rounds`, `fresh` opens a round when it is asked for a batch, and
        returns it once the round is over. A source that has asked should ask again until then:
        if it returns another batch first, an older policy than the newest plays the round.
    """

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout` seconds.

        A stop of the run waits for this call, so it should not take much longer.
        """

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Take the priorities that the algorithm gives to the unrolls with these keys."""


def decode_batch(
    codec: UnrollCodec,
    contents: tf.Tensor,
    versions: tf.Tensor,
    keys: tf.Tensor,
    fresh: tf.Tensor,
    device: str,
    weight: tf.Tensor | None = None,
) -> Batch:
    """Return the batch of B unrolls, string [B], with its entries on `device`; for use in a graph.

    Without a `weight`, float32 [B], columns that are not `fresh`, bool [B], are padding of weight
    0.
    """
    with tf.device("/CPU:0"):
        unrolls = codec.decode(contents)
        weight = tf.cast(fresh, tf.float32) if weight is None else weight
    entries, start = place_unrolls(*unrolls, device)
    return Batch(entries, start, keys, weight, versions, fresh)


def place_unrolls(entries: Entry, start: Any, device: str) -> tuple[Entry, Any]:
    """Return unrolls with their entries on `device`; for use in a graph.

    In one graph with the copy, TensorFlow places the data to copy in pinned memory.
    """
    with tf.device(device):
        placed, start = tf.nest.map_structure(tf.identity, (entries, start))
    # `first` stays on the CPU; otherwise counting the steps by it would wait for the GPU.
    return placed._replace(first=entries.first), start


class UnrollQueue:
    """The actors' queue, unroll by unroll: what `replay.source` takes from it."""

    def __init__(self, queue: tf.queue.QueueBase):
        self._queue = queue

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
        def take(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.device("/CPU:0"):
                return tuple(queue.dequeue_many(number))

        self._take = take

    def size(self) -> int:
        """Return how many unrolls wait."""
        return int(self._queue.size())

    def take(self, number: int) -> tuple[list[bytes], list[int]]:
        """Wait for `number` unrolls; return their bytes and versions."""
        try:
            contents, versions = self._take(tf.constant(number))
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError) as error:
            raise QueueClosed from error
        return contents.numpy().tolist(), versions.numpy().tolist()


class QueueSource:
    """A source of batches of new unrolls from the actors' queue, each used once.

    While one batch is trained on, the next is decoded and copied to the training device.
    """

    def __init__(self, server: Server, codec: UnrollCodec, batch_size: int, device: str = ""):
        """Take unrolls from the server's queue; `device` is where batches go, if not to train."""
        self._queue, self._codec, self._batch_size = server.queue, codec, batch_size
        self._device = device or devices.training_device()
        self._ahead = OneAhead()
        threading.Thread(target=self._prefetch, name="prefetch", daemon=True).start()

    def next(self, timeout: float) -> Batch | None:
        """Return a batch of the queue's oldest unrolls, or None after `timeout` seconds."""
        return self._ahead.next(timeout)

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Ignore priorities, since every unroll is used once."""

    def _prefetch(self) -> None:
        """Prepare one batch after another until the run ends."""
        thread_names.name_thread("prefetch")
        size, device = self._batch_size, self._device
        with tf.device("/CPU:0"):
            taken = tf.Variable(0, trainable=False, dtype=tf.int64)

        @tf.function(autograph=False)
        def take() -> Batch:
            with tf.device("/CPU:0"):
                contents, versions = self._queue.dequeue_many(size)
                keys = taken.assign_add(size) - tf.range(size, 0, -1, tf.int64)
                fresh = tf.fill([size], True)
            return decode_batch(self._codec, contents, versions, keys, fresh, device)

        while True:
            try:
                batch = take()
            except (tf.errors.OutOfRangeError, tf.errors.CancelledError):  # the run has ended
                return
            except BaseException as error:
                self._ahead.fail(error)
                return
            self._ahead.put(batch)
