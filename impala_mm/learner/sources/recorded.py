"""The sources of recorded games: batches before a student plays, and columns of later ones.

    RecordedGames ---> OfflineSource ---batches of --offline_updates---> PhasedSource ---> Lockstep
    the actors' source --------------------------afterwards----------------^  ^
    RecordedGames ---> OfflineSource ---columns beside them, by --teacher_data_share

An algorithm with a source of its own, such as SAC, has its own for recorded games, too
(`all_unrolls`). `phases` makes them once it is known how many updates are left.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config.errors import UserMistake
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec, UnrollSpec
from impala_mm.learner.sources.batch_source import (
    RECORDED,
    BatchSource,
    PrefetchedSource,
    place_unrolls,
)
from impala_mm.replay.recorded_games import RecordedGames
from impala_mm.runtime import devices, machine
from impala_mm.runtime.starter import process_rank

_KEPT_BYTES = 256e6  # of unrolls that a source keeps in memory
_AT_ONCE = 256  # unrolls that are decoded together, for arrays of all


def entries_before(algorithm: Algorithm, frame_stack: int) -> int:
    """Return how many entries before a recorded unroll the student's network reads frames of."""
    return frame_stack - 1 if defines(algorithm.start_after) else 0


class _Recorded:
    """The unrolls of recorded games, with the states in which they begin."""

    def __init__(self, games: RecordedGames, algorithm: Algorithm):
        self._games, self._algorithm = games, algorithm
        self._kept: dict[int, bytes] = {}  # by number
        spec = algorithm.unroll
        self.codec = UnrollCodec(
            UnrollSpec(spec.length, spec.overlap + games.earlier, spec.step, ())
        )

    def content(self, number: int) -> bytes:
        """Return what `cut` does; since that takes longer than many an update, keep what fits."""
        if kept := self._kept.get(number):
            return kept
        content = self.cut(number)
        if len(content) * len(self._kept) < _KEPT_BYTES:
            self._kept[number] = content
        return content

    def cut(self, number: int) -> bytes:
        """Return the bytes of an unroll and of the entries before it, with extras of 0."""
        rows = np.zeros([1, self.codec.size], np.uint8)
        entries = self.codec.arrays(rows).entries
        self._games.write(number, tf.nest.map_structure(lambda x: x[0], entries))
        return rows.tobytes()

    def decode(self, contents: tf.Tensor) -> tuple[Entry, Any]:
        """Return entries [T+overlap, B, ...] and the states before them, of contents [B]."""
        entries, _ = self.codec.decode(contents)
        earlier = self._games.earlier
        if not earlier:
            return entries, self._algorithm.initial_state(tf.shape(contents)[0])
        before, entries = (
            tf.nest.map_structure(lambda x, part=part: x[part], entries)
            for part in (slice(earlier), slice(earlier, None))
        )
        return entries, self._algorithm.start_after(before)


class OfflineSource(PrefetchedSource):
    """A source of batches of recorded unrolls, in random order, each unroll once in each pass."""

    def __init__(
        self,
        games: RecordedGames,
        algorithm: Algorithm,
        columns: int,
        batches: int | None,
        seed: list[int],
        share: tuple[int, int] = (0, 1),
    ):
        """Return that many batches of this learner's share of the games; None: without an end.

        `share` (r, n): every n-th unroll, from number r on; all learners have the same `seed`.
        """
        order = itertools.islice(_draw(len(games), seed), share[0], None, share[1])
        recorded, device = _Recorded(games, algorithm), devices.training_device()

        @tf.function(input_signature=[tf.TensorSpec([columns], tf.string)], autograph=False)
        def decode(contents: tf.Tensor) -> Batch:
            with tf.device("/CPU:0"):
                entries, start = recorded.decode(contents)
                keys, versions = (
                    tf.fill([columns], tf.constant(n, tf.int64)) for n in (RECORDED, 0)
                )
                rest = keys, tf.ones([columns]), versions, tf.fill([columns], False)
            return Batch(*place_unrolls(entries, start, device), *rest)

        def make() -> Iterator[Batch]:
            for _ in range(batches) if batches is not None else itertools.count():
                numbers = itertools.islice(order, columns)
                contents = [recorded.content(number) for number in numbers]
                with tf.device("/CPU:0"):
                    batch = decode(tf.constant(contents))
                yield batch

        super().__init__(make(), "offline")


def _draw(count: int, seed: list[int]) -> Iterator[int]:
    """Yield the numbers of this many unrolls, pass by pass."""
    random = np.random.default_rng(seed)
    while True:
        yield from random.permutation(count).tolist()


def all_unrolls(
    games: RecordedGames,
    algorithm: Algorithm,
    share: tuple[int, int],
    meanwhile: Callable[[], None] = lambda: None,
) -> Batch:
    """Return every n-th recorded unroll, from number r on, as arrays; `share` is (r, n).

    `meanwhile` is called for each block of them. Raises UserMistake if they do not fit in memory.
    """
    recorded = _Recorded(games, algorithm)
    # With fewer unrolls than learners, some take all.
    numbers = range(len(games))[share[0] :: share[1]] or range(len(games))
    learners = process_rank().local_size
    if problem := machine.why_too_many_unrolls(
        learners * len(numbers), UnrollCodec(algorithm.unroll).size
    ):
        of = f" for {learners} learners" * (learners > 1)
        raise UserMistake(f"recorded games{of}: {problem}; give fewer of them")
    held = batches.zeros(algorithm.unroll, len(numbers))
    for begin in range(0, len(numbers), _AT_ONCE):
        meanwhile()
        contents = [recorded.cut(number) for number in numbers[begin : begin + _AT_ONCE]]
        with tf.device("/CPU:0"):
            unrolls = recorded.decode(tf.constant(contents))
        places = begin + np.arange(len(contents))
        batches.assign(
            held,
            places,
            batches.columns(held, places)._replace(unrolls=unrolls[0], start=unrolls[1]),
        )
    held.key[:], held.weight[:] = RECORDED, 1.0
    return held


class PhasedSource(BatchSource):
    """A source that returns recorded batches first, and then those of another source.

    Recorded columns may be beside the columns of these.
    """

    def __init__(self, online: BatchSource):
        self._online = online
        self._offline: BatchSource | None = None
        self._left = 0  # batches of the offline source
        self._beside: BatchSource | None = None
        # The other source's batch, while recorded columns lack.
        self._from_actors: Batch | None = None
        self._columns: int | None = None  # of the other source's batches

    def begin(
        self, offline: BatchSource | None, batches: int, beside: BatchSource | None = None
    ) -> None:
        """Return that many batches of `offline` first; then have columns of `beside` in each."""
        self._offline, self._left, self._beside = offline, batches, beside

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout` seconds."""
        if self._offline:
            batch = self._offline.next(timeout)
            if batch is not None:
                self._left -= 1
                self._offline = self._offline if self._left else None
            return batch
        if not self._beside:
            return self._online.next(timeout)
        if self._from_actors is None:
            self._from_actors = self._online.next(timeout)
        recorded = None if self._from_actors is None else self._beside.next(timeout)
        if self._from_actors is None or recorded is None:
            return None
        played, self._from_actors = self._from_actors, None
        self._columns = played.weight.shape[0]
        return _joined(played, recorded)

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Pass priorities on, but for those of recorded unrolls."""
        if keys[0] != RECORDED:
            self._online.feedback(keys[: self._columns], priorities[: self._columns])

    def take_stored_steps(self) -> int:
        """Return the steps that the other source has stored."""
        return self._online.take_stored_steps()

    def filling(self) -> tuple[int, int]:
        """Return how far the other source is filled, once it is asked for batches."""
        return (0, 0) if self._offline else self._online.filling()

    def metrics(self) -> dict[str, float]:
        """Return the other source's metrics, once it is asked for batches."""
        return {} if self._offline else self._online.metrics()


def _joined(own: Batch, recorded: Batch) -> Batch:
    """Return a batch with the columns of both, of which the small parts are on the CPU."""

    def join(axis: int, *parts: Any) -> Any:
        return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, axis), *parts)

    entries, start = join(1, own.unrolls, recorded.unrolls), join(0, own.start, recorded.start)
    with tf.device("/CPU:0"):
        first = join(1, own.unrolls.first, recorded.unrolls.first)
        rest = join(0, list(own[2:]), list(recorded[2:]))
    return Batch(entries._replace(first=first), start, *rest)
