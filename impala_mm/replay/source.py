"""The source of batches that mixes new unrolls with replayed ones, prepared ahead.

    actors' queue ---> writer thread ---> Mixer --drawn--> preparing thread ---> next batch
                             |---> Spill

`mixer` decides what is stored and drawn, a `spill` keeps it on a disk as it arrives, and `shard`
with checkpoints. The threads here let training wait for none of them.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from impala_mm.data.batches import OneAhead
from impala_mm.data.trajectory import Batch
from impala_mm.replay.mixer import Columns, Mixer
from impala_mm.replay.shard import Share
from impala_mm.replay.spill import Spill
from impala_mm.replay.store import StoredUnroll, pack
from impala_mm.runtime import lifecycle

_MOST_AT_ONCE = 64  # unrolls that the writer takes from the queue at a time


class QueueClosed(Exception):
    """The actors' queue is closed, since the run ends."""


class Unrolls(Protocol):
    """The actors' queue."""

    def size(self) -> int:
        """Return how many unrolls wait."""

    def take(self, number: int) -> tuple[list[bytes], list[int]]:
        """Wait for `number` unrolls; return their bytes and versions, or raise QueueClosed."""


Turn = list[tuple[bytes, int]]  # unrolls: their bytes, and the policy version that played them


class Turns:
    """The unrolls of the last turn that are not used yet; the next turn begins after them.

        actor plays E unrolls -> learner makes all updates that they allow -> actor plays E more

    The policy after those updates plays it. No thread prepares anything, so no result depends on
    which of two threads is faster.
    """

    def __init__(self, play: Callable[[float], Turn] = lambda timeout: []):
        """Take the turns of `play`, which returns no unrolls if one lasts longer than a timeout.

        With --debug it plays in this thread, and is set before training begins.
        """
        self.play, self._unused = play, deque[tuple[bytes, int]]()

    def take_within(self, timeout: float, most: int) -> Turn:
        """Return 1 to `most` unrolls, or none if the turn lasts longer than `timeout`."""
        if not self._unused:
            self._unused += self.play(timeout)
        return [self._unused.popleft() for _ in range(min(most, len(self._unused)))]


class ReplaySource:
    """A `BatchSource` of new and old unrolls."""

    def __init__(
        self,
        actors: Unrolls | Turns,
        mixer: Mixer,
        decode: Callable[[Columns], Batch],
        spill: Spill | None = None,
        first_priorities: Callable[[Sequence[bytes]], np.ndarray] | None = None,
        memory_bytes: float = math.inf,
    ):
        """Take unrolls from `actors`, and return the batches that `decode` makes of a mix.

        Threads begin to work when the first batch is asked for; with `Turns` there are none, and
        `next` itself does their work, so that the same unrolls give the same batches. What lies in
        a `spill` is stored at once; once nothing more can be spilled, all replays together take up
        to `memory_bytes`. `first_priorities` returns those of new unrolls, float [N].
        """
        self._actors, self._mixer, self._decode = actors, mixer, decode
        self._first_priorities = first_priorities
        self._spill, self._memory_bytes = spill, memory_bytes
        # It guards the mixer and the replays. It is held during a draw, for which the learner must
        # not wait.
        self._changed = threading.Condition()
        self._ahead = OneAhead()
        self._threads: list[threading.Thread] = []
        if spill:
            self._restore(spill)

    # -- the learner's side

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout` seconds."""
        if isinstance(self._actors, Turns):
            return self._next_by_turns(self._actors, timeout)
        if not self._threads:
            self._threads = [
                threading.Thread(None, self._write, "replay-write", [self._actors], daemon=True),
                threading.Thread(None, self._prepare, "replay-draw", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
        return self._ahead.next(timeout)

    def _next_by_turns(self, actors: Turns, timeout: float) -> Batch | None:
        """Return the next batch, or None if the actor's turn lasts longer than `timeout`."""
        deadline = time.monotonic() + timeout
        while not self._mixer.may_draw():
            most = self._mixer.room(_MOST_AT_ONCE)
            found = actors.take_within(max(deadline - time.monotonic(), 0.0), max(most, 1))
            if not found:
                return None
            contents, versions = zip(*found, strict=True)
            self._store(contents, versions)
        return self._decode(self._mixer.draw())

    def feedback(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Keep priorities for the next draw."""
        self._mixer.feedback(keys, priorities)

    def take_stored_steps(self) -> int:
        """Return the steps since the last call that were stored and count as played."""
        return self._mixer.take_stored_steps()

    def filling(self) -> tuple[int, int]:
        """Return the unrolls that have arrived and those that the first update needs; then 0, 0."""
        return self._mixer.filling()

    def metrics(self) -> dict[str, float]:
        """Return the measurements of the last draw, by the keys of metrics."""
        return self._mixer.metrics()

    def save(self, folder: Path) -> None:
        """Write all stored unrolls to this folder."""
        with self._changed:
            self._mixer.save(folder)

    def restore(self, folder: Path) -> None:
        """Store the unrolls that `save` wrote; raise ValueError if they are of another kind."""
        self.restore_shares([Share(folder)])

    def restore_shares(self, shares: Sequence[Share]) -> None:
        """Store these shares of what learners have saved; raise ValueError as `restore` does."""
        with self._changed:
            self._mixer.restore(shares)

    def make_older(self, updates: int) -> None:
        """Let what is restored be another run's, which made this number of updates."""
        with self._changed:
            self._mixer.begin_anew(updates)

    # -- the writer thread

    def _write(self, actors: Unrolls) -> None:
        """Store what actors send until the run ends."""
        lifecycle.name_thread("replay-write")
        try:
            while True:
                self._store(*actors.take(self._wait_for_room(actors)))
        except QueueClosed:
            return
        except BaseException as error:
            self._ahead.fail(error)

    def _store(self, contents: Sequence[bytes], versions: Sequence[int]) -> None:
        """Store new unrolls, in memory and in the spill."""
        packed = [pack(content) for content in contents]
        first: Sequence[float | None] = [None] * len(contents)
        if self._first_priorities:
            first = self._first_priorities(contents).tolist()
        with self._changed:
            stored = [*map(self._mixer.receive, contents, versions, packed, first)]
            self._changed.notify_all()
        if self._spill:
            self._write_to(self._spill, [unroll for unroll in stored if unroll])

    def _wait_for_room(self, actors: Unrolls) -> int:
        """Wait until unrolls may be taken; return how many."""
        while True:
            most = min(max(actors.size(), 1), _MOST_AT_ONCE)
            with self._changed:
                if self._mixer.overflow != "wait":
                    return most
                if room := self._mixer.room(most):
                    return room
                self._changed.wait(1.0)

    # -- the files of a spill

    def _restore(self, spill: Spill) -> None:
        """Store what lies in the spill."""
        unrolls = spill.read()
        for replay in self._mixer.replays:
            replay.fill(unrolls)
        self._mixer.continue_with(spill.next_key())
        spill.delete_unused(self._is_stored)
        if unrolls:
            self._mixer.say(
                f"replay: {len(unrolls):,} unrolls of an earlier start were found on disk"
            )

    def _write_to(self, spill: Spill, unrolls: Sequence[StoredUnroll]) -> None:
        """Add unrolls to the spill, and let those in its files no longer take memory.

        Once the disk takes no more, the replays keep to what fits in memory.
        """
        for unroll in unrolls:
            if written := spill.add(unroll):
                with self._changed:
                    for each in written:
                        for replay in self._mixer.replays:
                            replay.store.replace(each)
                    spill.delete_unused(self._is_stored)
        if spill.stopped:
            capacity = sum(replay.store.capacity for replay in self._mixer.replays)
            with self._changed:
                for replay in self._mixer.replays:
                    share = self._memory_bytes * replay.store.capacity / capacity
                    replay.limit(min(replay.store.max_bytes, share))
                spill.delete_unused(self._is_stored)

    def _is_stored(self, keys: np.ndarray) -> bool:
        return any((replay.store.slots_of(keys) >= 0).any() for replay in self._mixer.replays)

    # -- the preparing thread

    def _prepare(self) -> None:
        """Prepare one batch after another until the run ends."""
        lifecycle.name_thread("replay-draw")
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._mixer.may_draw)
                    drawn = self._mixer.draw()
                    self._changed.notify_all()
                self._ahead.put(self._decode(drawn))
        except BaseException as error:
            self._ahead.fail(error)
