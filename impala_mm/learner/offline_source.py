"""The source of batches before a student plays: recorded games, without actors.

    RecordedGames ---> OfflineSource ---batches of --offline_updates---> PhasedSource ---> Lockstep
    the actors' source -----------------afterwards-------------------------^

`phases` makes the first one once it is known how many updates are left.
"""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.one_ahead import OneAhead
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.learner.batch_source import BatchSource, decode_batch
from impala_mm.replay.recorded_games import RecordedGames
from impala_mm.runtime import devices, thread_names


class OfflineSource:
    """A source of batches of recorded unrolls, in random order, each unroll once in each pass.

    While one batch is trained on, the next is decoded and copied to the training device.
    """

    def __init__(
        self,
        games: RecordedGames,
        algorithm: Algorithm,
        batch_size: int,
        batches: int,
        seed: list[int],
        share: tuple[int, int] = (0, 1),
        device: str = "",
    ):
        """Return that many batches of this learner's share of the games.

        `share` (r, n): every n-th unroll, from number r on; all learners have the same `seed`.
        """
        self._games, self._codec = games, UnrollCodec(algorithm.unroll)
        self._start = [leaf.numpy() for leaf in tf.nest.flatten(algorithm.initial_state(1))]
        self._batch_size, self._batches = batch_size, batches
        self._order = itertools.islice(self._draw(seed), share[0], None, share[1])
        self._device = device or devices.training_device()
        self._ahead = OneAhead()
        threading.Thread(target=self._prefetch, name="offline", daemon=True).start()

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None after `timeout` seconds."""
        return self._ahead.next(timeout)

    def _draw(self, seed: list[int]) -> Iterator[int]:
        """Yield the numbers of unrolls, pass by pass."""
        random = np.random.default_rng(seed)
        while True:
            yield from random.permutation(len(self._games)).tolist()

    def _prefetch(self) -> None:
        thread_names.name_thread("offline")
        size = self._batch_size

        @tf.function(input_signature=[tf.TensorSpec([size], tf.string)], autograph=False)
        def decode(contents: tf.Tensor) -> Batch:
            with tf.device("/CPU:0"):
                keys, versions = tf.fill([size], tf.constant(-1, tf.int64)), tf.zeros([size])
                fresh = tf.fill([size], False)
                versions = tf.cast(versions, tf.int64)
            weight = tf.ones([size])
            return decode_batch(self._codec, contents, versions, keys, fresh, self._device, weight)

        try:
            for _ in range(self._batches):
                contents = [self._unroll(number) for number in itertools.islice(self._order, size)]
                with tf.device("/CPU:0"):
                    batch = decode(tf.constant(contents))
                self._ahead.put(batch)
        except BaseException as error:
            self._ahead.fail(error)

    def _unroll(self, number: int) -> bytes:
        """Return an unroll's bytes, with the initial state and extras of 0."""
        rows = np.zeros([1, self._codec.size], np.uint8)
        entries, start = self._codec.arrays(rows)
        self._games.write(number, tf.nest.map_structure(lambda x: x[0], entries))
        for array, value in zip(tf.nest.flatten(start), self._start, strict=True):
            array[...] = value
        return rows.tobytes()


class PhasedSource:
    """A source that returns recorded batches first, and then those of another source."""

    def __init__(self, online: BatchSource):
        self._online = online
        self._offline: OfflineSource | None = None
        self._left = 0  # batches of the offline source

    def begin(self, offline: OfflineSource, batches: int) -> None:
        """Return that many batches of `offline` first."""
        self._offline, self._left = offline, batches

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout` seconds."""
        if not self._offline:
            return self._online.next(timeout)
        batch = self._offline.next(timeout)
        if batch is not None:
            self._left -= 1
            self._offline = self._offline if self._left else None
        return batch

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Pass priorities on, but for those of recorded unrolls."""
        if keys[0] >= 0:
            self._online.feedback(keys, priorities)

    def take_stored_steps(self) -> int:
        """Return the steps that the other source has stored."""
        return self._ask("take_stored_steps", int)

    def filling(self) -> tuple[int, int]:
        """Return how far the other source is filled, once it is asked for batches."""
        return (0, 0) if self._offline else self._ask("filling", lambda: (0, 0))

    def metrics(self) -> dict[str, float]:
        """Return the other source's metrics, once it is asked for batches."""
        return {} if self._offline else self._ask("metrics", dict)

    def _ask(self, name: str, default: Any) -> Any:
        return getattr(self._online, name, default)()
