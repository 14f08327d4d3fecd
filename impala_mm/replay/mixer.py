"""The mix of a batch: which new and old unrolls are in it, and what is counted.

    new unrolls --receive--> the replays, and those not yet in a batch --draw--> columns of a batch

`source` calls it, one thread at a time but for what says otherwise.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from impala_mm.config.replay_mix import divide
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.replay import shard
from impala_mm.replay.samplers import Sampler
from impala_mm.replay.shard import MixState, Share
from impala_mm.replay.store import Store, StoredUnroll, pack, unpack
from impala_mm.runtime.log import Say

_ROUNDING = 1e-9
_RATE_SECONDS = 10.0  # seconds after which the rate of new unrolls is known


class RateLimiter(NamedTuple):
    """The rule by which unrolls may be taken from the actors, and updates may be made.

    The first update needs `minimum` unrolls, and each further unroll allows `ratio` more updates.
    The actors may be ahead by as many updates as one unroll allows, or by one.
    """

    ratio: float  # updates for each new unroll
    minimum: int  # unrolls

    def allowed_updates(self, unrolls: int) -> int:
        """Return how many updates may have been made once this number of unrolls has arrived."""
        if unrolls < self.minimum:
            return 0
        return math.floor(self.ratio * (unrolls - self.minimum) + 1 + _ROUNDING)

    def allows_update(self, unrolls: int, updates: int) -> bool:
        """Return whether one more update may be made."""
        return updates < self.allowed_updates(unrolls)

    def allows_unroll(self, unrolls: int, updates: int) -> bool:
        """Return whether one more unroll may be taken; otherwise the learner is behind."""
        ahead = self.allowed_updates(unrolls) - updates
        return unrolls < self.minimum or ahead < max(1, math.floor(self.ratio))

    def room(self, unrolls: int, updates: int, most: int) -> int:
        """Return how many unrolls may be taken at once, up to `most`."""
        for n in range(most):
            if not self.allows_unroll(unrolls + n, updates):
                return n
        return most


class Columns(NamedTuple):
    """The columns of a batch before they are unpacked and decoded."""

    contents: Sequence[bytes | memoryview]  # as they are stored
    keys: np.ndarray  # int64 [B]
    versions: np.ndarray  # int64 [B]
    weights: np.ndarray  # float32 [B]
    fresh: np.ndarray  # bool [B]


class Mixer:
    """New unrolls and replays, and the batches that they make."""

    def __init__(
        self,
        codec: UnrollCodec,
        replays: Sequence[Sampler],
        columns: Sequence[int],
        limiter: RateLimiter,
        overflow: str,
        progress: Callable[[], float],
        overlap: int,
        say: Say,
    ):
        """Mix `columns` of every batch: so many new unrolls, and so many of each of the replays.

        `overflow` is --replay_overflow, and `progress` the share of the run that is done. The
        first `overlap` entries of an unroll are no new steps.
        """
        self._codec, self.replays = codec, list(replays)
        self._check = UnrollCheck(codec.spec, extras=True)
        self._fresh_columns, *self._columns = columns
        self._limiter = limiter
        self.overflow, self._progress = overflow, progress
        self._overlap, self.say = overlap, say
        # Whether every batch waits for its new unrolls, or old ones may take their places.
        self._waits_for_fresh = limiter.ratio * self._fresh_columns <= 1 + 1e-6
        self._new = deque[StoredUnroll]()  # not yet in a batch, uncompressed; the newest last
        self._received = 0  # unrolls that were stored: the next one's key
        self._counted = 0  # unrolls by which the limiter goes: those that did not overflow
        self._updates = 0  # batches that were drawn
        self._counting = threading.Lock()  # guards `_stored_steps`
        self._stored_steps = 0  # steps of unrolls that will be in no batch as new ones
        self._arrived = self.discarded = self._bad = 0
        self._measured: dict[str, float] = {}
        self._began = math.inf  # time.monotonic() when the first unroll had arrived
        self._stored_before = 0  # unrolls that earlier starts of the run had stored
        self._said_begin = self._said_rate = self._said_bad = False
        self._priorities: deque[tuple[np.ndarray, np.ndarray]] = deque()

    # -- what any thread may call, and never waits for a draw

    def take_stored_steps(self) -> int:
        """Return the steps since the last call that were stored and count as played."""
        with self._counting:
            steps, self._stored_steps = self._stored_steps, 0
            return steps

    def filling(self) -> tuple[int, int]:
        """Return the unrolls that have arrived and those that the first update needs; then 0, 0."""
        return (0, 0) if self._updates else (self._counted, self._limiter.minimum)

    def metrics(self) -> dict[str, float]:
        """Return the measurements of the last draw, by the keys of metrics."""
        return self._measured

    def feedback(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Keep priorities for the next draw."""
        self._priorities.append((np.asarray(keys), np.asarray(priorities)))

    # -- what arrives

    def room(self, most: int) -> int:
        """Return how many unrolls may be taken before the learner is behind, up to `most`."""
        return self._limiter.room(self._counted, self._updates, most)

    def receive(
        self, content: bytes, version: int, packed: bytes, priority: float | None
    ) -> StoredUnroll | None:
        """Store an unroll, and return it; if the learner is behind the flags may discard it.

        One that would make an update not finite allows no update, so that no batch waits for it.
        """
        behind = not self._limiter.allows_unroll(self._counted, self._updates)
        self._arrived += 1
        if behind and (
            self.overflow == "keep_oldest" or (self.overflow == "alternating" and self._arrived % 2)
        ):
            self.discarded += 1
            return None
        if mistake := self._check.mistake(content):
            self._note_bad(version, mistake)
            self._count_steps(content)
            return None
        self._began = min(self._began, time.monotonic())
        key, self._received = self._received, self._received + 1
        self._counted += not behind
        stored = StoredUnroll(key, version, packed, priority)
        for replay in self.replays:
            replay.insert(stored)
        self._new.append(StoredUnroll(key, version, content))
        while len(self._new) > self._fresh_columns:
            self._count_steps(self._new.popleft().content)
        return stored

    def save(self, folder: Path) -> None:
        """Write the replays, and what a resumed run needs to draw as this one will, to a folder."""
        self._write_priorities()
        waiting = [unroll._replace(content=pack(bytes(unroll.content))) for unroll in self._new]
        counts = [self._counted, self._updates, self._arrived, self.discarded, self._bad]
        state = MixState(waiting, np.array(counts), self._rules())
        shard.save(folder, self._codec, self.replays, state)

    def restore(self, shares: Sequence[Share]) -> None:
        """Continue with these shares of what learners have saved; raise ValueError if none fits."""
        self.continue_with(*shard.restore(shares, self._codec, self.replays))

    def _rules(self) -> np.ndarray:
        """Return the numbers without which those of `MixState` mean nothing."""
        return np.array([*self._limiter, self._fresh_columns], np.float64)

    def continue_with(self, next_key: int, state: MixState | None = None) -> None:
        """Give this key to the next unroll, now that the replays hold restored ones.

        With the `state` of a mix with these rules, it continues. Otherwise the first update does
        not wait for as many unrolls again as are stored already.
        """
        self._received = next_key
        if state and np.array_equal(state.rules, self._rules()):
            counts = state.counts.tolist()
            self._counted, self._updates, self._arrived, self.discarded, self._bad = counts
            size = self._codec.size
            self._new.extend(u._replace(content=unpack(u.content, size)) for u in state.waiting)
            self._stored_before = self._count_stored()
        else:
            self._skip_filling()

    def _skip_filling(self) -> None:
        """Count what the replays hold already, if it is enough for the first update."""
        if min(replay.store.size for replay in self.replays) >= self._limiter.minimum:
            self._counted = self._limiter.minimum - self._fresh_columns

    def begin_anew(self, updates: int) -> None:
        """Count from 0 with the replays of another run, whose policies are `updates` older."""
        for replay in self.replays:
            replay.store.make_older(updates)
        self._new.clear()
        self._counted = self._updates = self._arrived = self.discarded = self._bad = 0
        self._stored_before = 0
        self._skip_filling()

    def _count_steps(self, content: bytes | memoryview) -> None:
        """Count the steps of an unroll that will be in no batch as a new one, without resets."""
        entries, _ = self._codec.arrays(np.frombuffer(content, np.uint8)[np.newaxis])
        with self._counting:
            self._stored_steps += int((~entries.first[:, self._overlap :]).sum())

    def _note_bad(self, version: int, mistake: str) -> None:
        self._bad += 1
        if not self._said_bad:
            self._said_bad = True
            self.say(
                f"an unroll of policy version {version} is not trained on: {mistake}; further "
                f"ones are counted as replay_nan"
            )

    # -- what is drawn

    def may_draw(self) -> bool:
        """Return whether there is enough for a batch, and the ratio of updates allows one."""
        enough = not self._waits_for_fresh or len(self._new) >= self._fresh_columns
        filled = all(replay.store.size for replay in self.replays)
        return enough and filled and self._limiter.allows_update(self._counted, self._updates)

    def draw(self) -> Columns:
        """Return the columns of the next batch: the new unrolls, then those of each replay."""
        self._note_progress()
        self._write_priorities()
        self._updates += 1
        number = min(self._fresh_columns, len(self._new))
        chosen = [self._new.popleft() for _ in range(number)]
        weights = [np.ones(number, np.float32)]
        measured, uses = dict[str, float](), []
        extra = divide(self._fresh_columns - number, self._columns)
        progress = self._progress()
        for replay, own, more in zip(self.replays, self._columns, extra, strict=True):
            store = replay.store
            slots, weight, found = replay.draw(own + more, progress)
            uses.append(store.uses[slots])
            np.add.at(store.uses, slots, 1)
            chosen += [store[slot] for slot in slots.tolist()]
            weights.append(weight)
            measured |= {f"replay_{name}/{replay.name}": value for name, value in found.items()}
            measured[f"replay_unrolls/{replay.name}"] = store.size
        measured["replay_uses"] = float(np.concatenate(uses).mean())
        measured["replay_discarded"] = self.discarded
        measured["replay_nan"] = self._bad
        self._measured = measured
        return Columns(
            [unroll.content for unroll in chosen],
            np.array([unroll.key for unroll in chosen], np.int64),
            np.array([unroll.version for unroll in chosen], np.int64),
            np.concatenate(weights),
            np.arange(len(chosen)) < number,
        )

    def _write_priorities(self) -> None:
        """Pass on the priorities of `feedback` to the replays."""
        while self._priorities:
            keys, priorities = self._priorities.popleft()
            for replay in self.replays:
                replay.write_priorities(keys, priorities)

    def _note_progress(self) -> None:
        """Print once that training begins, and once how long the replays take to fill."""
        stores = [(replay.name, replay.store) for replay in self.replays]
        if not self._said_begin:
            self._said_begin = True
            held = ", ".join(f"{kind}: {store.size:,}" for kind, store in stores)
            self.say(f"replay: training begins with this many unrolls: {held}")
        seconds = time.monotonic() - self._began
        if seconds > _RATE_SECONDS and not self._said_rate:
            self._said_rate = True
            rate = (self._count_stored() - self._stored_before) / seconds
            held = "; ".join(self._describe(kind, store, rate) for kind, store in stores)
            self.say(f"replay: at this rate, {rate:,.1f} unrolls/s, {held}")

    def _count_stored(self) -> int:
        return self._arrived - self.discarded - self._bad

    def _describe(self, kind: str, store: Store, rate: float) -> str:
        """Return what a replay will hold, in words; `rate` is that of new unrolls, per second."""
        unrolls = store.expected_size()
        return (
            f"{kind} holds {unrolls:,} unrolls: {unrolls * self._codec.spec.length:,} steps, "
            f"{unrolls / rate / 60:,.1f} minutes of play"
        )
