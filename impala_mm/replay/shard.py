"""The contents of a learner's replay as files: its shard.

    unrolls.bin     the unrolls' bytes as they are stored, one after the other
    index.npz       for each: its version and size; for each replay, by name: which of them it
                    holds, in their order, for each of these its slot and how often it was drawn,
                    and the state of its kind, such as priorities; which ones wait to be in a batch
                    as new ones; the counts of the mix, and the state of its random numbers

A learner that reads its own shard again continues exactly, except for a batch that was drawn ahead,
and for features that it compares.

`learner.own_state` decides where and when, and checks the files.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_mm.data.trajectory import UnrollCodec
from impala_mm.replay.samplers import Sampler
from impala_mm.replay.store import StoredUnroll

_UNROLLS, _INDEX = "unrolls.bin", "index.npz"
_OWN = {"held", "slots", "random", "uses"}  # of what is saved of a replay, what is no state of its


class Share(NamedTuple):
    """Every `of`-th unroll of a shard, from number `first` on."""

    folder: Path
    first: int = 0
    of: int = 1


class MixState(NamedTuple):
    """The state with which a mix continues, besides its replays."""

    waiting: list[StoredUnroll]  # not yet in a batch as new ones
    counts: np.ndarray  # int64
    rules: np.ndarray  # float64: a mix with others cannot continue with these counts


def save(folder: Path, codec: UnrollCodec, replays: Sequence[Sampler], mix: MixState) -> None:
    """Write what the replays hold, and what waits, to a folder, each unroll once."""
    unrolls = {unroll.key: unroll for unroll in mix.waiting}
    unrolls |= {unroll.key: unroll for each in replays for unroll in each.store.in_order()}
    keys = np.array(sorted(unrolls), np.int64)
    index: dict[str, Any] = {
        "unroll": np.array(codec.digest),
        "versions": np.array([unrolls[key].version for key in keys.tolist()], np.int64),
        "sizes": np.array([len(unrolls[key].content) for key in keys.tolist()], np.int64),
        "waiting": np.searchsorted(keys, np.array([u.key for u in mix.waiting], np.int64)),
        "counts": mix.counts,
        "rules": mix.rules,
    }
    for replay in replays:
        order = np.array([unroll.key for unroll in replay.store.in_order()], np.int64)
        slots = replay.store.slots_of(order)
        state = replay.state(slots)
        if taken := _OWN & state.keys():
            raise ValueError(f"the state of {replay.name} has other names than {taken}")
        state |= {
            "held": np.searchsorted(keys, order),
            "slots": slots,
            "random": encode_random(replay.random),
            "uses": replay.store.uses[slots],
        }
        index |= {f"{replay.name}/{name}": value for name, value in state.items()}
    with (folder / _UNROLLS).open("wb") as file:
        for key in keys.tolist():
            file.write(unrolls[key].content)
    np.savez(folder / _INDEX, **index)


def restore(
    shares: Sequence[Share], codec: UnrollCodec, replays: Sequence[Sampler]
) -> tuple[int, MixState | None]:
    """Fill empty replays from shares of shards; return what a learner continues with.

    It is the number of unrolls, which get new keys, and the state of the mix if there is one whole
    shard. Several shares are merged by the ages of their unrolls, so that the oldest of all are
    removed where there is no room. A replay whose name was not saved takes the newest unrolls of
    all. Raises ValueError if a shard holds unrolls of another network or environment.
    """
    indices = [_read_index(share, codec) for share in shares]
    found = [
        unroll
        for share, index in zip(shares, indices, strict=True)
        for unroll in _read_unrolls(share, index)
    ]
    found.sort(key=lambda each: each.age)  # keeps the order of those that are as old
    keys = {(each.share, each.number): key for key, each in enumerate(found)}
    unrolls = [StoredUnroll(key, each.version, each.content) for key, each in enumerate(found)]
    for replay in replays:
        _fill(replay, shares, indices, keys, unrolls)
    if not _is_whole(shares) or "rules" not in indices[0]:
        return len(unrolls), None
    waiting = [unrolls[number] for number in indices[0]["waiting"].tolist()]
    return len(unrolls), MixState(waiting, indices[0]["counts"], indices[0]["rules"])


def _is_whole(shares: Sequence[Share]) -> bool:
    """Return whether these are all that one learner saved."""
    return len(shares) == 1 and shares[0].of == 1


class _Found(NamedTuple):
    """One unroll of a share."""

    share: Share
    number: int  # in its shard
    version: int
    age: int  # the largest version up to this one, since unrolls of old versions may come late
    content: bytes


def _read_index(share: Share, codec: UnrollCodec) -> dict[str, np.ndarray]:
    with np.load(share.folder / _INDEX) as index:
        if (found := str(index["unroll"])) != codec.digest:
            raise ValueError(
                f"{share.folder} holds unrolls of another network, environment or --unroll_length "
                f"(layout {found}, now {codec.digest}): it is read again once these are as before"
            )
        return dict(index)


def _read_unrolls(share: Share, index: dict[str, np.ndarray]) -> Iterator[_Found]:
    ends, versions = np.cumsum(index["sizes"]).tolist(), index["versions"].tolist()
    ages = np.maximum.accumulate(index["versions"]).tolist()
    with (share.folder / _UNROLLS).open("rb") as file:
        for number in range(share.first, len(ends), share.of):
            size = int(index["sizes"][number])
            file.seek(ends[number] - size)
            yield _Found(share, number, versions[number], ages[number], file.read(size))


def _fill(
    replay: Sampler,
    shares: Sequence[Share],
    indices: Sequence[dict[str, np.ndarray]],
    keys: dict[tuple[Share, int], int],
    unrolls: Sequence[StoredUnroll],
) -> None:
    """Fill a replay with those unrolls that replays of its name held.

    If these are all that one learner saved, and there is room, it continues exactly.
    """
    name = f"{replay.name}/"
    saved = [
        {n.removeprefix(name): index[n] for n in index if n.startswith(name)} for index in indices
    ]
    keys_held: list[np.ndarray] = []
    kept: list[np.ndarray] = []  # which of those that were held belong to the shares
    for share, index, mine in zip(shares, indices, saved, strict=True):
        held = mine.get("held", np.arange(len(index["sizes"])))
        kept.append((held - share.first) % share.of == 0)
        numbers = held[kept[-1]].tolist()
        keys_held.append(np.array([keys[share, number] for number in numbers], np.int64))
    in_slots = None
    if _is_whole(shares) and "slots" in saved[0]:
        in_slots = [unrolls[key] for key in keys_held[0][np.argsort(saved[0]["slots"])].tolist()]
    if in_slots is not None and replay.fill_slots(in_slots):
        decode_random(replay.random, saved[0]["random"])
    else:
        replay.fill([unrolls[key] for key in sorted(np.concatenate(keys_held).tolist())])
    for mine, wanted, held in zip(saved, kept, keys_held, strict=True):
        slots = replay.store.slots_of(held)
        stored = slots >= 0  # others were removed for lack of room
        if "uses" in mine:
            replay.store.uses[slots[stored]] = mine["uses"][wanted][stored]
        state = {name: mine[name] for name in mine.keys() - _OWN}
        rows = {name: v[wanted][stored] if v.ndim else v for name, v in state.items()}
        replay.restore(slots[stored], rows)


def encode_random(random: np.random.Generator) -> np.ndarray:
    """Return the state of a generator that `np.random.default_rng` made, as 64-bit numbers."""
    state = random.bit_generator.state
    large = [state["state"]["state"], state["state"]["inc"]]
    words = [(number >> shift) & (2**64 - 1) for number in large for shift in (64, 0)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def decode_random(random: np.random.Generator, words: np.ndarray) -> None:
    """Give a generator the state that `encode_random` returned."""
    a, b, c, d, has, rest = map(int, words)
    state = dict(random.bit_generator.state)
    state["state"] = {"state": (a << 64) | b, "inc": (c << 64) | d}
    state["has_uint32"], state["uinteger"] = has, rest
    random.bit_generator.state = state
