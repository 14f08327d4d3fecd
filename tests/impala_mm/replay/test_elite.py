"""The strategies of elite sampling, attentive replay, and distances that are kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.config import replay_mix
from impala_mm.replay.distances import l2
from impala_mm.replay.elite import (
    Attentive,
    Elite,
    Features,
    Measures,
    PolicyDistance,
    choose_elite,
)
from impala_mm.replay.parts import make_replay
from impala_mm.replay.removal import MostDistant, Oldest
from impala_mm.replay.store import Store, StoredUnroll

DISTANCES = np.array([0.5, 0.1, 0.9, 0.3, 0.7, 0.2])
USES = np.array([0, 2, 0, 1, 0, 2])


@pytest.mark.parametrize(
    ("strategy", "chosen"),
    [
        ("1", [1, 5, 3]),  # the smallest distances
        ("2", [1, 3, 4]),  # sorted: 1 5 | 3 0 | 4 2
        ("3", [0, 4, 2]),  # never drawn: 0, 2, 4
        ("4", [1, 0, 4]),  # the least drawn of each group
    ],
)
def test_each_strategy_chooses_what_it_says(strategy, chosen):
    assert choose_elite(DISTANCES, USES, 3, strategy).tolist() == chosen


@settings(deadline=None)
@given(
    distances=st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=40),
    number=st.integers(1, 40),
    strategy=st.sampled_from("1234"),
)
def test_as_many_as_asked_for_are_chosen_and_none_twice_even_if_all_are_alike(
    distances, number, strategy
):
    number = min(number, len(distances))
    uses = np.arange(len(distances)) % 2
    chosen = choose_elite(np.array(distances), uses, number, strategy)
    assert len(set(chosen.tolist())) == number


class Learner:
    """Measures whose recorded features are an unroll's version and its present ones 0."""

    def __init__(self):
        self.computed, self.now = [], 0
        self.measures = Measures(self.recorded, self.both, lambda: self.now)

    def recorded(self, unrolls):
        return np.array([[[u.version, 0.0]] * 2 for u in unrolls], np.float32)  # [N, T, F]

    def both(self, unrolls):
        self.computed += [u.key for u in unrolls]
        recorded = self.recorded(unrolls)
        return Features(recorded, np.zeros_like(recorded))


def _store(versions):
    store = Store(len(versions))
    return store, [StoredUnroll(k, v, b"") for k, v in enumerate(versions)]


def test_a_distance_is_kept_until_it_is_too_old():
    store, unrolls = _store([3, 1, 2])
    learner = Learner()
    distance = PolicyDistance(store, l2, learner.measures, max_age=10)
    for unroll in unrolls:
        store.add(unroll)
    assert distance(np.array([0, 1, 0])).tolist() == [3, 1, 3]
    assert learner.computed == [0, 1]
    learner.now = 10
    assert distance(np.array([0, 2])).tolist() == [3, 2]
    assert learner.computed == [0, 1, 2]
    learner.now = 11
    distance(np.array([0, 1, 2]))
    assert learner.computed == [0, 1, 2, 0, 1]
    store.remove(0)  # the last one takes its slot
    assert distance(np.array([0])).tolist() == [2]
    assert len(learner.computed) == 5


def _elite(versions, strategy="1", candidates=3.0, anneal=1.0):
    store, unrolls = _store(versions)
    learner = Learner()
    distance = PolicyDistance(store, l2, learner.measures, max_age=10)
    for unroll in unrolls:
        store.add(unroll)
    random = np.random.default_rng(0)
    return store, Elite(store, random, distance, strategy, candidates, anneal), learner


def test_elite_prefers_unrolls_of_which_the_policy_still_thinks_alike():
    store, elite, _ = _elite(list(range(30)), candidates=15.0)
    draw = elite.draw(2, 0.0)
    assert sorted(store[slot].version for slot in draw.slots) == [0, 1]
    assert draw.measured["distance"] == 0.5
    assert draw.measured["distance_of_candidates"] == 14.5


def test_the_share_of_candidates_falls_with_the_runs_frames_and_not_with_calls():
    _, elite, learner = _elite(list(range(100)), candidates=3.0)
    for _ in range(50):
        assert "distance" in elite.draw(10, 0.0).measured
    learner.computed.clear()
    learner.now = 1000
    elite.draw(10, 0.5)
    assert len(learner.computed) == 20
    assert elite.draw(10, 1.0).measured == {}, "in the end it draws at random"


def test_fewer_unrolls_than_are_drawn_are_drawn_again():
    _, elite, _ = _elite([5, 7], strategy="2")
    assert len(elite.draw(6, 0.0).slots) == 6


def test_attentive_prefers_unrolls_that_resemble_the_newest_state():
    store, unrolls = _store([9, 1, 8, 2, 7, 3])
    for unroll in unrolls:
        store.add(unroll)
    sampler = Attentive(store, np.random.default_rng(0), l2, Learner().measures, 3.0, 1.0)
    draw = sampler.draw(2, 0.0)  # all six are candidates; the newest is 3
    assert sorted(store[slot].version for slot in draw.slots) == [2, 3]


class Varying(Learner):
    """Measures whose recorded features are other ones at each of three steps."""

    STEPS = ([0, 0, 9], [4, 4, 4], [5, 6, 7])

    def recorded(self, unrolls):
        return np.array([self.STEPS[u.key] for u in unrolls], np.float32)[..., None]


def test_the_distance_of_a_policy_is_the_mean_over_an_unrolls_steps():
    store, unrolls = _store([0, 0, 0])
    distance = PolicyDistance(store, l2, Varying().measures, max_age=10)
    for unroll in unrolls:
        store.add(unroll)
    assert distance(np.arange(3)).tolist() == [3, 4, 6]


def test_attentive_compares_every_step_with_the_last_one_of_the_newest_unroll():
    """It is 7, from which the steps differ by 7, 7, 2; by 3, 3, 3; and by 2, 1, 0."""
    store, unrolls = _store([0, 0, 0])
    for unroll in unrolls:
        store.add(unroll)
    sampler = Attentive(store, np.random.default_rng(0), l2, Varying().measures, 3.0, 1.0)
    draw = sampler.draw(1, 0.0)
    assert store[draw.slots[0]].key == 2
    assert draw.measured["distance"] == pytest.approx(1)
    assert draw.measured["distance_of_candidates"] == pytest.approx((16 / 3 + 3 + 1) / 3)


def test_elite_insertion_removes_the_most_distant_and_oldest_the_first():
    store, unrolls = _store([4, 9, 2])
    for unroll in unrolls:
        store.add(unroll)
    distance = PolicyDistance(store, l2, Learner().measures, max_age=10)
    assert MostDistant(3, distance, np.random.default_rng(0)).choose(store) == 1
    assert Oldest().choose(store) == 0


@pytest.mark.parametrize(("insertion", "left"), [("elite", [4, 2, 3]), ("oldest", [9, 2, 3])])
def test_a_full_elite_replay_makes_room_by_the_rule_that_the_mix_names(insertion, left):
    text = f"elite:1:3:insertion={insertion}:compared=3"
    (part,) = replay_mix.parse(text).replays
    replay = make_replay(part, 1, 1e9, np.random.default_rng(0), Learner().measures)
    for key, version in enumerate([4, 9, 2, 3]):
        replay.insert(StoredUnroll(key, version, b"x"))
    assert [unroll.version for unroll in replay.store.in_order()] == left
