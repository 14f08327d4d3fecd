"""The replay's files: what is restored, and what is refused."""

import re

import numpy as np
import pytest
import tensorflow as tf
from unrolls import CODEC, SPEC, unroll

from impala_mm.config import replay_mix
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.replay import shard
from impala_mm.replay.samplers import SamplerSetup, make_replay
from impala_mm.replay.store import StoredUnroll, pack, unpack

MIX = shard.MixState([], np.zeros(5, np.int64), np.zeros(3))
TEXT = "uniform:0.5:6,prioritised:0.5:4:exponent=1"


def _replays(text=TEXT):
    random = np.random.default_rng(0)
    return [make_replay(SamplerSetup(part, 1e9, random)) for part in replay_mix.parse(text).replays]


def _filled(numbers, text=TEXT):
    replays = _replays(text)
    for number in numbers:
        for replay in replays:
            replay.insert(StoredUnroll(number, 100 + number, pack(unroll(number))))
    return replays


def _held(replay):
    """Return the number in each unroll's rewards, from the oldest to the newest."""
    found = []
    for each in replay.store.in_order():
        rows = np.frombuffer(unpack(each.content, CODEC.size), np.uint8)[np.newaxis]
        found.append(int(CODEC.arrays(rows).entries.reward[0, 1]))
        assert each.version == 100 + found[-1]
    return found


def _slots(replay):
    """Return the slots from the oldest unroll to the newest."""
    return replay.store.slots_of(np.array([each.key for each in replay.store.in_order()]))


def _scaled(replay, slots):
    """Return the priorities of slots to the power of the exponent."""
    return replay.state(np.asarray(slots))["priorities"]


def test_a_shard_brings_back_unrolls_uses_and_priorities(tmp_path):
    before = _filled(range(10))
    before[0].store.uses[:] = np.arange(6)
    before[1].feedback(np.arange(4), np.array([9.0, 3.0, 2.0, 1.0]))
    before[1].feedback(np.arange(1), np.array([4.0]))
    shard.save(tmp_path, CODEC, before, MIX)
    after = _replays()
    assert shard.restore([shard.Share(tmp_path)], CODEC, after)[0] == 6
    for old, new in zip(before, after, strict=True):
        assert _held(new) == _held(old)
        old_slots, new_slots = map(_slots, (old, new))
        np.testing.assert_array_equal(new.store.uses[new_slots], old.store.uses[old_slots])
        if old.kind == "prioritised":
            np.testing.assert_array_equal(_scaled(new, new_slots), _scaled(old, old_slots))
            for each in (old, new):
                each.insert(StoredUnroll(20, 120, pack(unroll(20))))
            newest = [_scaled(each, [each.store.newest()]) for each in (old, new)]
            assert newest == [[9.0], [9.0]], "the largest so far, whose unroll is gone"


def test_two_replays_of_a_kind_keep_what_is_their_own(tmp_path):
    text = "prioritised:0.5:6:exponent=1,prioritised:0.5:4:exponent=2"
    before = _filled(range(10), text)
    for replay in before:
        replay.write_priorities(np.arange(6, 10), np.array([1.0, 2.0, 3.0, 4.0]))
    before[1].store.uses[:] = 5
    shard.save(tmp_path, CODEC, before, MIX)
    after = _replays(text)
    shard.restore([shard.Share(tmp_path)], CODEC, after)
    assert [_held(each) for each in after] == [list(range(4, 10)), list(range(6, 10))]
    assert [_scaled(each, _slots(each)[-4:]).tolist() for each in after] == [
        [1, 2, 3, 4],
        [1, 4, 9, 16],
    ]
    assert [each.store.uses.sum() for each in after] == [0, 20]


def test_a_shard_of_an_earlier_version_brings_back_its_unrolls_and_no_mix(tmp_path):
    shard.save(tmp_path, CODEC, _filled(range(10)), MIX)
    with np.load(tmp_path / "index.npz") as index:
        later = re.compile("slots|random|waiting|counts|rules")
        kept = {name: value for name, value in index.items() if not later.search(name)}
    assert len(kept) == len(index.files) - 7
    np.savez(tmp_path / "index.npz", **kept)
    after = _replays()
    assert shard.restore([shard.Share(tmp_path)], CODEC, after) == (6, None)
    assert [_held(each) for each in after] == [list(range(4, 10)), list(range(6, 10))]


def test_two_shards_become_one_and_one_becomes_two(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder, numbers in zip(folders, (range(3), range(10, 13)), strict=True):
        folder.mkdir()
        shard.save(folder, CODEC, _filled(numbers), MIX)
    merged = _replays()
    assert shard.restore([shard.Share(f) for f in folders], CODEC, merged)[0] == 6
    assert _held(merged[0]) == [0, 1, 2, 10, 11, 12]
    halves = [_replays() for _ in range(2)]
    for first, half in enumerate(halves):
        shard.restore([shard.Share(folders[0], first, 2)], CODEC, half)
    assert [_held(half[0]) for half in halves] == [[0, 2], [1]]
    (smaller,) = _replays("uniform:1:2")  # of another mix
    shard.restore([shard.Share(f) for f in folders], CODEC, [smaller])
    assert _held(smaller) == [11, 12], "the newest unrolls of all"


def test_of_shards_that_do_not_fit_into_one_the_newest_unrolls_of_all_are_kept(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder, numbers in zip(folders, (range(0, 12, 2), range(1, 13, 2)), strict=True):
        folder.mkdir()
        before = _filled(numbers)
        before[0].store.uses[:] = numbers
        for slot in range(before[1].store.size):
            key = before[1].store[slot].key
            before[1].feedback(np.array([slot]), np.array([float(key)]))
        shard.save(folder, CODEC, before, MIX)
    merged = _replays()
    shard.restore([shard.Share(f) for f in folders], CODEC, merged)
    assert [_held(each) for each in merged] == [[6, 7, 8, 9, 10, 11], [8, 9, 10, 11]]
    for each in merged:
        slots = _slots(each)
        found = each.store.uses[slots] if each.kind == "uniform" else _scaled(each, slots)
        assert found.tolist() == _held(each), "uses and priorities are still those of their unrolls"


@pytest.mark.parametrize(
    "other",
    [
        SPEC._replace(length=5),
        SPEC._replace(step=SPEC.step._replace(action=tf.TensorSpec([2], tf.float32))),
        SPEC._replace(start=tf.TensorSpec([8], tf.float32)),
    ],
    ids=["length", "actions", "core"],
)
def test_unrolls_of_another_network_or_space_are_refused_by_name(tmp_path, other):
    shard.save(tmp_path, CODEC, _filled(range(3)), MIX)
    replays = _replays()
    with pytest.raises(ValueError, match=f"{tmp_path} holds unrolls of another network"):
        shard.restore([shard.Share(tmp_path)], UnrollCodec(other), replays)
    assert [replay.store.size for replay in replays] == [0, 0]
