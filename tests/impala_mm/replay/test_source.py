"""The source that mixes: which unrolls are in a batch, who waits for whom, and what is counted."""

import copy
import errno
import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from deadlines import Deadline, within
from supervising import until
from unrolls import CODEC, LENGTH, Actors, decode, unroll

from impala_mm.config import replay_mix
from impala_mm.replay.mixer import Mixer, RateLimiter
from impala_mm.replay.samplers import SamplerSetup, make_replay
from impala_mm.replay.source import ReplaySource, Turns
from impala_mm.replay.spill import Owner, Spill
from impala_mm.replay.store import pack

BATCH = 4


@pytest.fixture
def actors():
    made = Actors()
    yield made
    made.close()


def _source(
    actors, text, ratio=None, minimum=BATCH, overflow="wait", say=print, spill=None, memory=1e9
):
    mix = replay_mix.parse(text)
    columns = replay_mix.split_columns(mix, BATCH)
    random = np.random.default_rng(0)
    replays = [make_replay(SamplerSetup(part, 1e9, random)) for part in mix.replays]
    limiter = RateLimiter(ratio or 1 / (columns[0] or BATCH), minimum)
    mixer = Mixer(CODEC, replays, columns, limiter, overflow, lambda: 0.0, 1, say)
    return ReplaySource(actors, mixer, decode, spill, memory_bytes=memory), replays


def _taken(actors, number):
    """Wait until the source has taken this many unrolls, and return whether it takes no more."""
    until(lambda: actors.taken >= number, 20)
    time.sleep(0.2)
    return actors.taken == number


def test_a_batch_holds_new_unrolls_once_and_old_ones_by_the_shares(actors):
    source, _ = _source(actors, "queue:0.5,uniform:0.25:100,prioritised:0.25:100")
    actors.put(*range(20))
    batches = [source.next(60) for _ in range(6)]
    new = [n for batch in batches for n in batch.version[batch.fresh].tolist()]
    assert new == list(range(2, 14)), "each once, in their order; the first two filled the replay"
    for batch in batches:
        assert batch.fresh.tolist() == [True, True, False, False]
        np.testing.assert_array_equal(batch.unrolls.reward[1], batch.version)
        np.testing.assert_array_equal(batch.key, batch.version)
        assert batch.weight.dtype == np.float32
        assert (batch.version <= batch.version[batch.fresh].max() + 4).all()


def test_without_a_new_unroll_no_batch_is_returned_at_the_mixs_own_ratio(actors):
    source, _ = _source(actors, "queue:0.5,uniform:0.5:100")
    actors.put(*range(5))
    assert source.next(60) is not None
    assert source.next(0.3) is None
    actors.put(5)
    assert source.next(60).version[:2].tolist() == [4, 5]
    actors.close()
    assert source.next(0.3) is None


def test_a_larger_ratio_fills_the_queues_share_with_old_unrolls(actors):
    source, _ = _source(actors, "queue:0.5,uniform:0.5:100", ratio=2)
    actors.put(*range(6))
    batches = [source.next(60) for _ in range(5)]
    assert source.next(0.3) is None, "4 unrolls allow one update, and two more allow 4"
    new = [n for batch in batches for n in batch.version[batch.fresh].tolist()]
    assert new == sorted(set(new))
    assert new[-1] == 5
    assert source.take_stored_steps() == (6 - len(new)) * LENGTH, "each counts once"
    assert source.take_stored_steps() == 0
    assert all(len(batch.fresh) == BATCH for batch in batches)


def test_actors_wait_while_the_learner_does_not_train(actors):
    source, _ = _source(actors, "queue:0.5,uniform:0.5:100")
    actors.put(*range(50))
    assert source.next(60) is not None
    # One batch is trained on, one is prepared, and the unrolls of one more are stored.
    assert _taken(actors, BATCH + 2 + 2)
    assert actors.size() == 50 - 8


@pytest.mark.parametrize(
    ("overflow", "stored"), [("keep_latest", 40), ("keep_oldest", 8), ("alternating", 24)]
)
def test_actors_need_not_wait_if_unrolls_may_be_lost(actors, overflow, stored):
    source, (replay,) = _source(actors, "queue:0.5,uniform:0.5:100", overflow=overflow)
    assert source.next(0.1) is None
    actors.put(*range(4))
    assert source.next(60) is not None
    actors.put(4, 5)
    assert _taken(actors, 6)
    actors.put(6, 7)
    assert _taken(actors, 8)
    actors.put(*range(8, 40))
    until(lambda: (replay.store.size, source._mixer.discarded) == (stored, 40 - stored))
    batches = [source.next(60) for _ in range(2)]
    assert batches[-1].version[1] == (7 if overflow == "keep_oldest" else 39)


def test_a_replay_alone_counts_the_steps_that_it_stores(actors):
    source, _ = _source(actors, "uniform:1:100", ratio=3, minimum=2)
    actors.put(0, 1)
    actors.put(2, resets=1)
    batches = [source.next(60) for _ in range(4)]
    assert not any(batch.fresh.any() for batch in batches)
    assert source.next(0.3) is None
    assert source.take_stored_steps() == 3 * LENGTH - 1
    assert source.take_stored_steps() == 0


def test_priorities_reach_the_unrolls_that_are_still_stored_and_no_others(actors):
    source, (replay,) = _source(actors, "queue:0.5,prioritised:0.5:4:exponent=1")
    actors.put(*range(4))
    assert source.next(60).key.max() < 4
    source.feedback(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    actors.put(4, 5)  # they take the places of 0 and 1
    source.next(60)
    source.feedback(np.array([0, 1, 4]), np.array([50.0, 50.0, 7.0]))
    actors.put(6, 7)
    source.next(60)
    keys = np.array([4, 5, 6, 7])
    scaled = replay.state(replay.store.slots_of(keys))["priorities"]
    assert scaled.max() <= 7, "50 was for unrolls that are gone"
    assert scaled[0] == 7


def test_an_unroll_with_nan_or_infinity_is_in_no_batch_and_said_once(actors):
    """Its steps were played, and no batch waits for it."""
    said = []
    source, (replay,) = _source(actors, "queue:0.5,uniform:0.5:100", say=said.append)
    actors.put(0, np.nan, np.inf, -np.inf, np.nan, 3, 4, 5, 6, np.inf, 7)
    for _ in range(2):
        assert np.isfinite(source.next(60).unrolls.reward).all()
    assert _taken(actors, 11)
    assert replay.store.size == 6
    (line,) = [line for line in said if "is not trained on" in line]
    assert "its reward contains NaN or infinity" in line
    assert source.metrics()["replay_nan"] >= 4
    assert source.take_stored_steps() == (5 + 2) * LENGTH, "two filled the replay"


def test_unrolls_of_another_run_are_older_than_all_of_this_one(actors, tmp_path):
    text = "queue:0.5,uniform:0.25:100,prioritised:0.25:100"
    source, _ = _source(actors, text)
    actors.put(*range(20))
    for _ in range(6):
        source.next(60)
    source.save(tmp_path)
    turns = TurnsOfSix()
    again, restored = _source(turns, text)
    again.restore(tmp_path)
    before = [[u.version for u in replay.store.in_order()] for replay in restored]
    again.make_older(50)
    assert again.filling()[1], "no update was made yet"
    for replay, versions in zip(restored, before, strict=True):
        assert max(versions) > 0
        held = replay.store.in_order()
        assert [u.version for u in held] == [version - 50 for version in versions]
    turns.played = 100
    batch = again.next(0.0)
    assert batch.version[batch.fresh].tolist() == [100, 101], "none of the other run's are new"


def test_metrics_say_what_is_held_and_how_often_it_was_used(actors):
    said = []
    source, _ = _source(actors, "queue:0.5,uniform:0.5:100", ratio=5, say=said.append)
    actors.put(*range(5))
    for _ in range(6):
        source.next(60)
    measured = source.metrics()
    assert measured["replay_unrolls/uniform"] == 5
    assert 0 < measured["replay_uses"] < 12
    assert measured["replay_discarded"] == 0
    assert [line.endswith("uniform: 5") for line in said] == [True]
    source._mixer._began -= 20
    actors.put(5)
    source.next(60)
    source.next(60)
    assert "uniform holds 100 unrolls: 400 steps, " in said[1]


def test_the_learner_does_not_wait_for_a_draw(actors):
    """A draw may compute features of many unrolls; it goes on while the learner trains."""
    source, (replay,) = _source(actors, "queue:0.5,uniform:0.5:100")
    actors.put(*range(6))
    drawn, may_end = threading.Event(), threading.Event()
    draw, calls = replay.draw, []

    def slowly(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            drawn.set()
            assert may_end.wait(60)
        return draw(*arguments)

    replay.draw = slowly
    first = source.next(60)
    assert drawn.wait(60)
    with within(10):
        source.take_stored_steps()
        source.metrics()
        source.feedback(first.key, first.weight)
    may_end.set()
    assert source.next(60) is not None


def test_a_failure_of_a_thread_is_raised_to_the_learner(actors):
    source, _ = _source(actors, "queue:0.5,uniform:0.5:100")
    source._decode = lambda columns: 1 / 0
    actors.put(*range(4))
    with pytest.raises(ZeroDivisionError):
        [source.next(0.1) for _ in range(100)]


def test_a_spill_brings_the_replay_back_and_only_a_few_unrolls_lie_in_memory(actors, tmp_path):
    def open_source():
        spill = Spill(tmp_path, Owner("/run", CODEC.digest), 4, print)
        return spill, _source(actors, "uniform:0.5:8,prioritised:0.5:6", ratio=1, spill=spill)

    spill, (source, (uniform, prioritised)) = open_source()
    actors.put(*range(22))
    batches = [source.next(60) for _ in range(17)]
    for batch in batches:
        np.testing.assert_array_equal(batch.unrolls.reward[1], batch.version)

    def in_memory():
        return [u.key for u in uniform.store.in_order() if isinstance(u.content, bytes)]

    until(lambda: in_memory() == [20, 21])  # all others are written, and none is being written
    kept = [u.key for u in uniform.store.in_order()][:-2]
    spill.close()
    spill, (source, (uniform, prioritised)) = open_source()
    assert [u.key for u in uniform.store.in_order()][-len(kept) :] == kept
    assert prioritised.store.size == 6
    batch = source.next(60)
    np.testing.assert_array_equal(batch.unrolls.reward[1], batch.version)
    assert len(list(tmp_path.glob("*.unrolls"))) <= 4, "files of removed unrolls are deleted"
    spill.close()


def test_once_the_disk_is_full_the_replay_keeps_to_memory(actors, tmp_path, monkeypatch):
    size = len(pack(unroll(9)))
    said = []
    spill = Spill(tmp_path, Owner("/run", CODEC.digest), 4, said.append)
    limited = {"ratio": 9, "spill": spill, "memory": 12.5 * size}
    source, (uniform, prioritised) = _source(actors, "uniform:0.5:90,prioritised:0.5:30", **limited)

    def fill(numbers):
        actors.put(*numbers)
        deadline = Deadline(20)
        while actors.taken <= numbers[-1]:
            assert not deadline.is_over()
            source.next(0.05)

    fill(range(24))
    until(lambda: len(spill._files) == 6)  # and none is being written
    assert (uniform.store.size, prioritised.store.size) == (24, 24)

    def refuse(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", refuse)
    fill(range(24, 32))
    until(lambda: (uniform.store.size, prioritised.store.size) == (9, 3))
    assert "No space left" in said[0]
    fill(range(32, 50))
    until(lambda: uniform.store.in_order()[-1].version == 49)
    assert uniform.store.bytes <= 12.5 * size * 3 / 4
    assert [each.version for each in uniform.store.in_order()] == list(range(41, 50))
    until(lambda: not list(tmp_path.glob("*.unrolls")))
    spill.close()


class TurnsOfSix(Turns):
    """An actor that plays 6 unrolls at a time, once the learner has used those before."""

    def __init__(self):
        super().__init__(self._play_six)
        self.played = 0

    def _play_six(self, timeout):
        del timeout
        self.played += 6
        return [(unroll(number), number) for number in range(self.played - 6, self.played)]


@pytest.mark.parametrize("ratio", [None, 3])
def test_with_an_actor_that_takes_turns_the_same_batches_are_drawn_each_time(ratio):
    """No thread draws ahead: priorities of an update always reach the next draw."""

    def batches():
        text = "queue:0.5,uniform:0.25:9,prioritised:0.25:7:exponent=1"
        source, _ = _source(TurnsOfSix(), text, ratio=ratio)
        found = []
        for number in range(40):
            batch = source.next(0.0)
            source.feedback(batch.key, np.arange(1.0, 5.0) * (number % 3 + 1))
            found.append((batch.key.tolist(), batch.weight.tolist(), batch.fresh.tolist()))
        assert not source._threads
        return found

    drawn = batches()
    assert drawn == batches()
    new = [key for keys, _, fresh in drawn for key in np.array(keys)[fresh].tolist()]
    assert new == sorted(set(new))


@pytest.mark.parametrize("ratio", [None, 0.75, 3])
def test_a_replay_that_is_restored_draws_what_it_would_have_drawn(tmp_path, ratio):
    text = "queue:0.5,uniform:0.25:9,prioritised:0.25:7:exponent=1"
    turns = TurnsOfSix()
    source, _ = _source(turns, text, ratio=ratio)

    def draw(source, number):
        batch = source.next(0.0)
        source.feedback(batch.key, np.abs(np.sin(batch.version + number)))
        return batch._replace(key=None)  # keys begin anew

    for number in range(30):
        draw(source, number)
    source.save(tmp_path)
    again, _ = _source(copy.deepcopy(turns), text, ratio=ratio)
    again.restore(tmp_path)
    assert again.filling() == (0, 0)
    for number in range(30, 60):
        expected, found = (draw(each, number) for each in (source, again))
        tf.nest.map_structure(np.testing.assert_array_equal, expected, found)
        assert again.metrics() == source.metrics()


def test_at_another_ratio_a_restored_replay_neither_hurries_nor_waits(tmp_path):
    text = "queue:0.5,uniform:0.5:100"
    source, _ = _source(TurnsOfSix(), text)
    for _ in range(30):
        source.next(0.0)
    source.save(tmp_path)
    for ratio in (0.25, 3):
        turns = TurnsOfSix()
        again, _ = _source(turns, text, ratio=ratio)
        again.restore(tmp_path)
        turns.played = 100
        updates = [again.next(0.0) for _ in range(12)]
        taken = turns.played - 100 - len(turns._unused)
        assert all(batch is not None for batch in updates)
        assert abs(taken - 12 / ratio) <= BATCH


def test_while_the_actors_turn_lasts_there_is_no_batch_and_no_turn_begins_too_early():
    turns = TurnsOfSix()
    source, _ = _source(turns, "queue:0.5,uniform:0.5:100")
    assert source.filling() == (0, BATCH)
    take, turns.take_within = turns.take_within, lambda timeout, most: []
    assert source.next(0.0) is None
    turns.take_within = take
    assert source.next(0.0) is not None
    assert source.filling() == (0, 0), "only what the first update needs is waited for"
    assert turns.played == 6
    assert source.next(0.0).version[:2].tolist() == [4, 5]
    assert turns.played == 6, "the updates on 6 unrolls come first"
    assert source.next(0.0).version[:2].tolist() == [6, 7]
