"""Sources of batches of the actors' new unrolls, and what any source of batches must do.

    QueueSource    the oldest unrolls of the actors' queue; the next batch is prepared meanwhile
    RoundSource    each round of an algorithm with rounds is a batch
    TurnSource     actor and learner take turns, for --deterministic_run and --debug

`choice` chooses one of them, and says what may be around it.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.batches import OneAhead
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec
from impala_mm.replay.source import QueueClosed, Turn, Turns
from impala_mm.runtime import devices, lifecycle
from impala_mm.transport.rounds import Rounds

RECORDED = -1  # key of recorded unrolls


class BatchSource:
    """A source of batches, such as the actors' queue or a replay buffer.

    An algorithm may define a method `source(fresh)`, which returns its own: `fresh` is the source
    of the actors' new unrolls, --batch_size of them in each batch. It may ask `fresh` for several
    batches, for none, or mix them with its own; `impala_mm.data.batches` does so column by column.
    It needs the methods `next` and `feedback`, and may have the others; it need not inherit them.

      * All its batches have the same shapes, since an update is compiled for them. They consist of
        tensors or NumPy arrays. In columns of weight 0, NaN and infinity are replaced by 0.
      * `Batch.fresh` says which columns count as played. An unroll that is used several times
        counts the first time only (`batches.replayed` marks the others). If all batches come from
        recorded data, a run ends at --total_environment_frames only if some of them count.
      * One thread at a time calls its methods. `feedback` for a batch is called before the next
        call of `next`, and with several learners before the one after it: they ask for one batch
        ahead, while they train on the previous one.
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
        raise NotImplementedError

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Take the priorities of the unrolls with these keys; ignored if each is used once."""

    def take_stored_steps(self) -> int:
        """Return further steps that count as played.

        They are those of unrolls that were stored since the last call and will be fresh nowhere.
        """
        return 0

    def metrics(self) -> dict[str, float]:
        """Return numbers by key that are added to those of each update."""
        return {}

    def filling(self) -> tuple[int, int]:
        """Return the unrolls that it has and those that its first batch needs, for the user.

        Both are 0 once there was one, or if that is not known.
        """
        return 0, 0


class Composition:
    """The metrics of which unrolls the batches consist of."""

    def __init__(self) -> None:
        self._replays = False  # whether a batch contained a replayed unroll

    def of(self, batch: Batch, updates: int) -> dict[str, float]:
        """Return the metrics of a batch by key, after this number of updates."""
        used, played = np.asarray(batch.weight) > 0, batch.played
        recorded = used & (np.asarray(batch.key) == RECORDED)
        values = {}
        if played.any():
            lag = updates - np.asarray(batch.version)[played]
            values["policy_lag"] = float(lag.mean())
        if recorded.any():
            values["recorded_share"] = float(recorded.sum() / used.sum())
        replayed = used & ~played & ~recorded
        self._replays |= bool(replayed.any())
        if self._replays and used.any():
            values["replay_share"] = float(replayed.sum() / used.sum())
        if replayed.any():
            age = updates - np.asarray(batch.version)[replayed]
            # A spill may hold unrolls of updates that the checkpoint of a resumed run lacks.
            values["replay_age"] = float(np.maximum(age, 0).mean())
        return values


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


def _make_take(
    queue: tf.queue.QueueBase, codec: UnrollCodec, size: int, device: str, pads: bool = False
) -> Callable[[tf.Tensor], Batch]:
    """Return a function that makes a batch of the oldest unrolls, numbered from 0, as a graph.

    It takes `size` unrolls, or with `pads`, the number that it is given, and pads the batch.
    """
    with tf.device("/CPU:0"):
        taken = tf.Variable(0, trainable=False, dtype=tf.int64)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    def take(count: tf.Tensor) -> Batch:
        with tf.device("/CPU:0"):
            contents, versions = queue.dequeue_many(count if pads else size)
            column = tf.range(size)
            if pads:
                # Padding repeats the round's unrolls, whose numbers are harmless in any formula.
                contents, versions = (tf.gather(x, column % count) for x in (contents, versions))
            keys = taken.assign_add(size) - tf.range(size, 0, -1, tf.int64)
            fresh = column < count
        return decode_batch(codec, contents, versions, keys, fresh, device)

    return take


class PrefetchedSource(BatchSource):
    """A source whose next batch a thread prepares while the last one is trained on."""

    def __init__(self, batches: Iterable[Batch], thread: str):
        """Return these batches; `thread` is the name of the thread that makes them."""
        self._ahead, name = OneAhead(), thread
        threading.Thread(None, self._prefetch, name, [batches, name], daemon=True).start()

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None after `timeout` seconds."""
        return self._ahead.next(timeout)

    def _prefetch(self, batches: Iterable[Batch], thread: str) -> None:
        """Prepare one batch after another until the run ends."""
        lifecycle.name_thread(thread)
        try:
            for batch in batches:
                self._ahead.put(batch)
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError):  # the run has ended
            return
        except BaseException as error:
            self._ahead.fail(error)


class QueueSource(PrefetchedSource):
    """A source of batches of the oldest unrolls in the actors' queue, each used once."""

    def __init__(
        self, queue: tf.queue.QueueBase, codec: UnrollCodec, batch_size: int, device: str = ""
    ):
        """Take unrolls from the queue; `device` is where batches go, if not to train."""
        take = _make_take(queue, codec, batch_size, device or devices.training_device())
        super().__init__((take(tf.constant(batch_size)) for _ in itertools.count()), "prefetch")


class RoundSource(BatchSource):
    """A source that returns each round as a batch, once it is over.

    A round whose actors have not sent all unrolls in time is padded to the full batch, since the
    update is traced for fixed shapes.
    """

    def __init__(
        self, rounds: Rounds, queue: tf.queue.QueueBase, codec: UnrollCodec, device: str = ""
    ):
        """Take unrolls from the queue; `device` is where batches go, if not to train."""
        self._rounds, self._queue, size = rounds, queue, rounds.columns
        self._take = _make_take(queue, codec, size, device or devices.training_device(), True)

    def next(self, timeout: float) -> Batch | None:
        """Return the first open round, or None if it lasts longer than `timeout`."""
        count = self._rounds.close(timeout)
        if count is None:
            return None
        if held := self._rounds.release():
            with tf.device("/CPU:0"):
                self._queue.enqueue_many(list(zip(*held, strict=True)))
        return self._take(tf.constant(count))


def turns_of_actor(rounds: Rounds, queue: tf.queue.QueueBase) -> Turns:
    """Return the turns of --deterministic_run: each is a round of the single actor."""
    unrolls = UnrollQueue(queue)

    def play(timeout: float) -> Turn:
        count = rounds.close(timeout)
        return [] if count is None else list(zip(*unrolls.take(count), strict=True))

    return Turns(play)


class TurnSource(BatchSource):
    """A source of batches of new unrolls, each used once."""

    def __init__(self, turns: Turns, codec: UnrollCodec, batch_size: int, device: str = ""):
        """Take unrolls from `turns`; `device` is where batches go, if not to train."""
        self._turns, self._batch_size = turns, batch_size
        self._collected: Turn = []  # for the next batch
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
            unrolls = self._turns.take_within(max(deadline - time.monotonic(), 0.0), missing)
            if not unrolls:
                return None
            self._collected += unrolls
        contents, versions = zip(*self._collected, strict=True)
        self._collected = []
        first, self._taken = self._taken, self._taken + self._batch_size
        with tf.device("/CPU:0"):
            keys = tf.constant(np.arange(first, self._taken))
            return self._decode(tf.constant(contents), tf.constant(versions, tf.int64), keys)
