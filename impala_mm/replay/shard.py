"""The contents of a learner's replay as files: its shard.

    unrolls.bin     the unrolls' bytes as they are stored, one after the other
    index.npz       for each: its version and size; for each replay, by kind: which of them it
                    holds, in their order, how often each was drawn, and priorities

`learner.own_state` decides where and when, and checks the files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_mm.data.trajectory import UnrollCodec
from impala_mm.replay.parts import Replay
from impala_mm.replay.samplers import Prioritised
from impala_mm.replay.store import StoredUnroll

_UNROLLS, _INDEX = "unrolls.bin", "index.npz"


class Share(NamedTuple):
    """Every `of`-th unroll of a shard, from number `first` on."""

    folder: Path
    first: int = 0
    of: int = 1


def save(folder: Path, codec: UnrollCodec, replays: Sequence[Replay]) -> None:
    """Write what the replays hold to a folder, each unroll once."""
    unrolls = {unroll.key: unroll for each in replays for unroll in each.store.in_order()}
    keys = np.array(sorted(unrolls), np.int64)
    index: dict[str, Any] = {
        "unroll": np.array(codec.digest),
        "versions": np.array([unrolls[key].version for key in keys.tolist()], np.int64),
        "sizes": np.array([len(unrolls[key].content) for key in keys.tolist()], np.int64),
    }
    for replay in replays:
        order = np.array([unroll.key for unroll in replay.store.in_order()], np.int64)
        slots = replay.store.slots_of(order)
        index[f"{replay.kind}/held"] = np.searchsorted(keys, order)
        index[f"{replay.kind}/uses"] = replay.store.uses[slots]
        if isinstance(replay.sampler, Prioritised):
            index[f"{replay.kind}/priorities"] = replay.sampler.scaled(slots)
    with (folder / _UNROLLS).open("wb") as file:
        for key in keys.tolist():
            file.write(unrolls[key].content)
    np.savez(folder / _INDEX, **index)


def restore(shares: Sequence[Share], codec: UnrollCodec, replays: Sequence[Replay]) -> int:
    """Fill empty replays from shares of shards; return the number of unrolls, which get new keys.

    A replay whose kind was not saved takes the newest unrolls of all. Raises ValueError if a shard
    holds unrolls of another network or environment.
    """
    next_key = 0
    for share in shares:
        with np.load(share.folder / _INDEX) as index:
            if (found := str(index["unroll"])) != codec.digest:
                raise ValueError(
                    f"{share.folder} holds unrolls of another network, environment or "
                    f"--unroll_length (layout {found}, now {codec.digest})"
                )
            next_key = _restore_one(share, dict(index), next_key, replays)
    return next_key


def _restore_one(
    share: Share, index: dict[str, np.ndarray], next_key: int, replays: Sequence[Replay]
) -> int:
    """Fill replays from one share, whose unrolls get keys from `next_key` on; return the next."""
    ends = np.cumsum(index["sizes"])
    numbers = np.arange(share.first, len(ends), share.of)
    unrolls: dict[int, StoredUnroll] = {}  # by number in the shard
    with (share.folder / _UNROLLS).open("rb") as file:
        for number in numbers.tolist():
            size = int(index["sizes"][number])
            file.seek(int(ends[number]) - size)
            version = int(index["versions"][number])
            unrolls[number] = StoredUnroll(next_key, version, file.read(size))
            next_key += 1
    for replay in replays:
        held = index.get(f"{replay.kind}/held", np.arange(len(ends)))
        mine = np.isin(held, numbers)
        replay.fill([unrolls[number] for number in held[mine].tolist()])
        slots = replay.store.slots_of(
            np.array([unrolls[number].key for number in held[mine].tolist()], np.int64)
        )
        kept = slots >= 0  # others were removed for lack of room
        if (uses := index.get(f"{replay.kind}/uses")) is not None:
            replay.store.uses[slots[kept]] = uses[mine][kept]
        priorities = index.get(f"{replay.kind}/priorities")
        if priorities is not None and isinstance(replay.sampler, Prioritised):
            replay.sampler.set_scaled(slots[kept], priorities[mine][kept])
    return next_key
