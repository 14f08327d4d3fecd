"""The files of what the replays hold: in a spill as it arrives, and in shards with checkpoints.

`source` calls it. The formats are those of `spill` and `shard`.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from impala_mm.data.trajectory import UnrollCodec
from impala_mm.replay import shard
from impala_mm.replay.parts import Replay
from impala_mm.replay.spill import Spill
from impala_mm.replay.store import StoredUnroll
from impala_mm.runtime.log import Say


class ReplayFiles:
    """The files of one learner's replays."""

    def __init__(
        self,
        codec: UnrollCodec,
        replays: Sequence[Replay],
        lock: threading.Condition,
        spill: Spill | None,
        memory_bytes: float,
        say: Say,
    ):
        """Write what `replays` hold, which `lock` guards; `spill` if they lie on a disk.

        Once nothing more can be spilled, all replays together take up to `memory_bytes`.
        """
        self._codec, self._replays, self._lock = codec, list(replays), lock
        self._spill, self._memory_bytes, self._say = spill, memory_bytes, say

    def restore_spill(self) -> int:
        """Store what lies in the spill; return the next unroll's key."""
        if not self._spill:
            return 0
        unrolls = self._spill.read()
        next_key = self._spill.next_key()
        for replay in self._replays:
            replay.fill(unrolls)
        self._spill.delete_unused(self._is_stored)
        if unrolls:
            self._say(f"replay: {len(unrolls):,} unrolls of an earlier start were found on disk")
        return next_key

    def spill(self, unrolls: Sequence[StoredUnroll]) -> None:
        """Add unrolls to the spill, and let those in its files no longer take memory."""
        spill = self._spill
        if not spill:
            return
        for unroll in unrolls:
            if written := spill.add(unroll):
                with self._lock:
                    for each in written:
                        for replay in self._replays:
                            replay.store.replace(each)
                    spill.delete_unused(self._is_stored)
        if spill.stopped:
            with self._lock:
                self._keep_to_memory()
                spill.delete_unused(self._is_stored)

    def save(self, folder: Path, mix: shard.MixState) -> None:
        """Write all stored unrolls and the mix to this folder; the caller holds the lock."""
        shard.save(folder, self._codec, self._replays, mix)

    def restore(self, shares: Sequence[shard.Share]) -> tuple[int, shard.MixState | None]:
        """Store these shares of what learners have saved.

        Return the next unroll's key, and the mix that was saved with them if it continues. The
        caller holds the lock. Raises ValueError if they are of another kind.
        """
        return shard.restore(shares, self._codec, self._replays)

    def _keep_to_memory(self) -> None:
        """Let the replays take no more than fits in memory, since the disk takes no more."""
        capacity = sum(replay.store.capacity for replay in self._replays)
        for replay in self._replays:
            share = self._memory_bytes * replay.store.capacity / capacity
            replay.limit(min(replay.store.max_bytes, share))

    def _is_stored(self, keys: np.ndarray) -> bool:
        return any((replay.store.slots_of(keys) >= 0).any() for replay in self._replays)
