"""The source of batches that mixes new unrolls with replayed ones.

    actors' queue ---> writer thread ---> stores  --drawn--> preparing thread ---> next batch
                             |---> new unrolls ------------------^

A limiter lets the learner and its actors wait for each other. Priorities are kept until the next
draw, so that training never waits for one.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from impala_mm.config.replay_mix import divide
from impala_mm.data.one_ahead import OneAhead
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.replay import shard
from impala_mm.replay.contents import count_steps, is_trainable, pack
from impala_mm.replay.limiter import RateLimiter
from impala_mm.replay.parts import Replay
from impala_mm.replay.spill import Spill
from impala_mm.replay.store import StoredUnroll
from impala_mm.runtime import thread_names
from impala_mm.runtime.log import Say

_RATE_SECONDS = 10.0  # seconds after which the rate of new unrolls is known
_MOST_AT_ONCE = 64  # unrolls that the writer takes from the queue at a time


class QueueClosed(Exception):
    """The actors' queue is closed, since the run ends."""


class UnrollQueue(Protocol):
    """The actors' queue."""

    def size(self) -> int:
        """Return how many unrolls wait."""

    def take(self, number: int) -> tuple[list[bytes], list[int]]:
        """Wait for `number` unrolls; return their bytes and versions, or raise QueueClosed."""


class Columns(NamedTuple):
    """The columns of a batch before they are unpacked and decoded."""

    contents: Sequence[bytes | memoryview]  # as they are stored
    keys: np.ndarray  # int64 [B]
    versions: np.ndarray  # int64 [B]
    weights: np.ndarray  # float32 [B]
    fresh: np.ndarray  # bool [B]


class ReplaySource:
    """A `BatchSource` of new and old unrolls."""

    def __init__(
        self,
        actors: UnrollQueue,
        codec: UnrollCodec,
        decode: Callable[[Columns], Batch],
        replays: Sequence[Replay],
        fresh_columns: int,
        limiter: RateLimiter,
        overflow: str,
        progress: Callable[[], float],
        overlap: int = 1,
        say: Say = print,
        spill: Spill | None = None,
        first_priorities: Callable[[list[bytes]], np.ndarray] | None = None,
    ):
        """Take unrolls from `actors`, whose first `overlap` entries are no new steps.

        `fresh_columns` of every batch are new unrolls, and the others are those of `replays`;
        `decode` makes the batch. `overflow` is --replay_overflow, and `progress` the share of the
        run that is done. Threads begin to work when the first batch is asked for. What lies in a
        `spill` is stored at once. `first_priorities` returns those of new unrolls, float [N].
        """
        self._actors, self._codec, self._decode = actors, codec, decode
        self._replays, self._fresh_columns = list(replays), fresh_columns
        self._limiter, self._overflow, self._progress = limiter, overflow, progress
        self._overlap, self._say, self._spill = overlap, say, spill
        self._first_priorities = first_priorities
        self._shares = [replay.columns for replay in self._replays]
        # Whether every batch waits for its new unrolls, or old ones may take their places.
        self._waits_for_fresh = limiter.ratio * fresh_columns <= 1 + 1e-6
        # The first guards all that follows. It is held during a draw, for which the learner must
        # not wait; the second one, which it takes, guards `_stored_steps`.
        self._changed, self._counting = threading.Condition(), threading.Lock()
        self._new = deque[StoredUnroll]()  # not yet in a batch, uncompressed; the newest last
        self._received = 0  # unrolls that were stored: the next one's key
        self._counted = 0  # unrolls by which the limiter goes: those that did not overflow
        self._updates = 0  # batches that were drawn
        self._stored_steps = 0  # steps of unrolls that will be in no batch as new ones
        self._arrived = self.discarded = self.not_numbers = 0
        self._measured: dict[str, float] = {}
        self._began = math.inf  # time.monotonic() when the first unroll had arrived
        self._said_rate = False
        self._priorities: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._ahead = OneAhead()
        self._threads: list[threading.Thread] = []
        if spill:
            self._read(spill)

    # -- the learner's side

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout` seconds."""
        if not self._threads:
            for name, work in (("replay-write", self._write), ("replay-draw", self._prepare)):
                self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                self._threads[-1].start()
        return self._ahead.next(timeout)

    def feedback(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Keep priorities for the next draw."""
        self._priorities.append((np.asarray(keys), np.asarray(priorities)))

    def take_stored_steps(self) -> int:
        """Return the steps since the last call that were stored and count as played."""
        with self._counting:
            steps, self._stored_steps = self._stored_steps, 0
            return steps

    def metrics(self) -> dict[str, float]:
        """Return the measurements of the last draw, by the keys of metrics."""
        return self._measured

    def save(self, folder: Path) -> None:
        """Write all stored unrolls to this folder."""
        with self._changed:
            self._write_priorities()
            shard.save(folder, self._codec, self._replays)

    def restore(self, folder: Path) -> None:
        """Store the unrolls that `save` wrote; raise ValueError if they are of another kind."""
        self.restore_shares([shard.Share(folder)])

    def restore_shares(self, shares: Sequence[shard.Share]) -> None:
        """Store these shares of what learners have saved; raise ValueError as `restore` does."""
        with self._changed:
            self._received = shard.restore(shares, self._codec, self._replays)
            self._count_restored()

    def _count_restored(self) -> None:
        """Let the first update not wait for as many unrolls again as are stored already."""
        if min(replay.store.size for replay in self._replays) >= self._limiter.minimum:
            self._counted = self._limiter.minimum - self._fresh_columns

    def _read(self, spill: Spill) -> None:
        """Store what lies in the spill."""
        unrolls = spill.read()
        for replay in self._replays:
            replay.fill(unrolls)
        if unrolls:
            self._received = unrolls[-1].key + 1
        spill.delete_unused(self._is_stored)
        self._count_restored()
        if unrolls:
            self._say(f"replay: {len(unrolls):,} unrolls of an earlier start were found on disk")

    # -- the writer thread

    def _write(self) -> None:
        """Store what actors send until the run ends."""
        thread_names.name_thread("replay-write")
        try:
            while True:
                contents, versions = self._actors.take(self._wait_for_room())
                packed = [pack(content) for content in contents]
                first: Sequence[float | None] = [None] * len(contents)
                if self._first_priorities:
                    first = self._first_priorities(contents).tolist()
                with self._changed:
                    stored = [*map(self._receive, contents, versions, packed, first)]
                    self._changed.notify_all()
                if self._spill:
                    self._write_to_disk(self._spill, [unroll for unroll in stored if unroll])
        except QueueClosed:
            return
        except BaseException as error:
            self._ahead.fail(error)

    def _wait_for_room(self) -> int:
        """Wait until unrolls may be taken; return how many."""
        while True:
            most = min(max(self._actors.size(), 1), _MOST_AT_ONCE)
            with self._changed:
                if self._overflow != "wait":
                    return most
                if room := self._limiter.room(self._counted, self._updates, most):
                    return room
                self._changed.wait(1.0)

    def _write_to_disk(self, spill: Spill, unrolls: Sequence[StoredUnroll]) -> None:
        """Add unrolls to the spill, and let those in its files no longer take memory."""
        for unroll in unrolls:
            if written := spill.add(unroll):
                with self._changed:
                    for each in written:
                        for replay in self._replays:
                            replay.store.replace(each)
                    spill.delete_unused(self._is_stored)

    def _is_stored(self, keys: np.ndarray) -> bool:
        return any((replay.store.slots_of(keys) >= 0).any() for replay in self._replays)

    def _receive(
        self, content: bytes, version: int, packed: bytes, priority: float | None
    ) -> StoredUnroll | None:
        """Store an unroll, and return it; if the learner is behind the flags may discard it.

        One that would make an update not finite allows no update, so that no batch waits for it.
        """
        behind = not self._limiter.allows_unroll(self._counted, self._updates)
        self._arrived += 1
        if behind and (
            self._overflow == "keep_oldest"
            or (self._overflow == "alternating" and self._arrived % 2)
        ):
            self.discarded += 1
            return None
        if not is_trainable(self._codec, content):
            self._note_bad(version)
            self._count_steps(content)
            return None
        self._began = min(self._began, time.monotonic())
        key, self._received = self._received, self._received + 1
        self._counted += not behind
        stored = StoredUnroll(key, version, packed, priority)
        for replay in self._replays:
            replay.insert(stored)
        self._new.append(StoredUnroll(key, version, content))
        while len(self._new) > self._fresh_columns:
            self._count_steps(self._new.popleft().content)
        return stored

    def _count_steps(self, content: bytes | memoryview) -> None:
        """Count the steps of an unroll that will be in no batch as a new one."""
        steps = count_steps(self._codec, content, self._overlap)
        with self._counting:
            self._stored_steps += steps

    def _note_bad(self, version: int) -> None:
        self.not_numbers += 1
        if self.not_numbers == 1:
            self._say(
                f"an unroll of policy version {version} contains NaN or infinity and is not "
                f"trained on; further ones are counted as replay_nan"
            )

    # -- the preparing thread

    def _prepare(self) -> None:
        """Prepare one batch after another until the run ends."""
        thread_names.name_thread("replay-draw")
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._may_draw)
                    drawn = self._draw()
                    self._changed.notify_all()
                self._ahead.put(self._decode(drawn))
        except BaseException as error:
            self._ahead.fail(error)

    def _may_draw(self) -> bool:
        enough = not self._waits_for_fresh or len(self._new) >= self._fresh_columns
        filled = all(replay.store.size for replay in self._replays)
        return enough and filled and self._limiter.allows_update(self._counted, self._updates)

    def _draw(self) -> Columns:
        """Return the columns of the next batch: the new unrolls, then those of each replay."""
        self._note_progress()
        self._write_priorities()
        self._updates += 1
        number = min(self._fresh_columns, len(self._new))
        chosen = [self._new.popleft() for _ in range(number)]
        weights = [np.ones(number, np.float32)]
        measured, uses = dict[str, float](), []
        extra = divide(self._fresh_columns - number, self._shares)
        progress = self._progress()
        for replay, more in zip(self._replays, extra, strict=True):
            store = replay.store
            slots, weight, found = replay.sampler.draw(replay.columns + more, progress)
            uses.append(store.uses[slots])
            np.add.at(store.uses, slots, 1)
            chosen += [store[slot] for slot in slots.tolist()]
            weights.append(weight)
            measured |= {f"replay_{name}/{replay.kind}": value for name, value in found.items()}
            measured[f"replay_unrolls/{replay.kind}"] = store.size
        measured["replay_uses"] = float(np.concatenate(uses).mean())
        measured["replay_discarded"] = self.discarded
        measured["replay_nan"] = self.not_numbers
        self._measured = measured
        return Columns(
            [unroll.content for unroll in chosen],
            np.array([unroll.key for unroll in chosen], np.int64),
            np.array([unroll.version for unroll in chosen], np.int64),
            np.concatenate(weights),
            np.arange(len(chosen)) < number,
        )

    def _note_progress(self) -> None:
        """Print once that training begins, and once how long the replays take to fill."""
        stores = [(replay.kind, replay.store) for replay in self._replays]
        if not self._updates:
            held = ", ".join(f"{kind}: {store.size:,}" for kind, store in stores)
            self._say(f"replay: training begins with this many unrolls: {held}")
        seconds = time.monotonic() - self._began
        if seconds > _RATE_SECONDS and not self._said_rate:
            self._said_rate, rate = True, self._arrived / seconds
            times = ", ".join(
                f"{kind} {store.capacity:,} unrolls, {store.capacity / rate / 60:,.1f} minutes"
                for kind, store in stores
            )
            self._say(f"replay: at this rate, {rate:,.1f} unrolls/s, it holds the play of: {times}")

    def _write_priorities(self) -> None:
        while self._priorities:
            keys, priorities = self._priorities.popleft()
            for replay in self._replays:
                replay.write_priorities(keys, priorities)
