"""Uniform and prioritised draws, and the weights that correct for them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.replay.samplers import Prioritised, Uniform, annealed, importance_weights
from impala_mm.replay.store import Store, StoredUnroll


def _filled(size, capacity=None):
    store = Store(capacity or size)
    return store, lambda: [store.add(StoredUnroll(key, 0, b"")) for key in range(size)]


def _random():
    return np.random.default_rng(0)


def test_uniform_draws_each_unroll_equally_often_and_none_twice_at_once():
    store, fill = _filled(10)
    fill()
    sampler, counts = Uniform(store, _random()), np.zeros(10)
    for _ in range(2000):
        draw = sampler.draw(5, 0.0)
        assert len(set(draw.slots.tolist())) == 5
        assert (draw.weights == 1).all()
        counts[draw.slots] += 1
    np.testing.assert_allclose(counts, 1000, rtol=0.1)
    assert len(sampler.draw(25, 0.0).slots) == 25


def test_prioritised_draws_by_the_power_of_priorities_and_weights_undo_it_above_the_mean():
    store = Store(4)
    sampler = Prioritised(store, _random(), exponent=0.5, correction=1.0)
    for key in range(3):
        store.add(StoredUnroll(key, 0, b""))
    sampler.feedback(np.array([0, 1, 2]), np.array([1.0, 4.0, 16.0]))  # powers 1, 2, 4
    counts, weighted = np.zeros(3), np.zeros(3)
    for _ in range(3000):
        draw = sampler.draw(7, 0.0)
        np.add.at(counts, draw.slots, 1)
        np.add.at(weighted, draw.slots, draw.weights)
    np.testing.assert_allclose(counts / 3000, [1, 2, 4], rtol=0.05)
    np.testing.assert_allclose(weighted / 3000, [1, 2, 7 / 3], rtol=0.05)
    assert draw.measured["priority_largest"] == 16


def test_importance_weights_are_those_of_the_definition():
    """(N P)^-beta, at most 1, in float64."""
    priorities, beta = np.array([0.5, 1.0, 3.0, 7.5]), 0.7
    probabilities = priorities / priorities.sum()
    defined = np.minimum((4 * probabilities) ** -beta, 1.0)
    found = importance_weights(priorities[1:], priorities.mean(), beta)
    np.testing.assert_allclose(found, defined[1:], rtol=1e-6)
    assert found[1] == 1 > found[2]


@pytest.mark.parametrize(
    ("progress", "final", "correction"),
    [(0.0, 1, 0.4), (0.25, 1, 0.7), (0.5, 1, 1.0), (1.0, 1, 1.0), (0.25, 0.4, 0.4), (1, 0.4, 0.4)],
)
def test_the_correction_goes_to_its_final_value_over_its_share_of_the_run(
    progress, final, correction
):
    store, fill = _filled(4)
    sampler = Prioritised(store, _random(), exponent=1.0, correction=0.4, final=final, anneal=0.5)
    fill()
    sampler.feedback(np.arange(4), np.array([1.0, 2.0, 4.0, 9.0]))
    draw = sampler.draw(16, progress)
    expected = importance_weights(sampler.scaled(draw.slots), 4.0, correction)
    np.testing.assert_allclose(draw.weights, expected, rtol=1e-6)
    assert draw.weights.min() < 1


def test_one_unroll_that_is_learned_does_not_shrink_the_weights_of_all_others():
    """A new unroll of the same batch counts as 1."""
    store, fill = _filled(100)
    sampler = Prioritised(store, _random(), correction=1.0)
    fill()
    sampler.feedback(np.arange(100), np.array([0.0, *[1.0] * 99]))
    assert sampler.draw(64, 0.0).weights.mean() > 0.95


def test_a_new_unroll_has_the_largest_priority_so_far():
    store = Store(3)
    sampler = Prioritised(store, _random(), exponent=1.0)
    store.add(StoredUnroll(0, 0, b""))
    sampler.feedback(np.array([0]), np.array([9.0]))
    sampler.feedback(np.array([0]), np.array([0.0]))
    store.add(StoredUnroll(1, 0, b""))
    scaled = sampler.scaled(np.arange(2))
    assert scaled[1] == 9
    assert 0 < scaled[0] < 1e-5, "it may still be drawn"


def test_a_new_unroll_may_bring_its_first_priority():
    store = Store(3)
    sampler = Prioritised(store, _random(), exponent=1.0)
    for key, priority in enumerate([3.0, 0.5, float("nan")]):
        store.add(StoredUnroll(key, 0, b"", priority))
    assert sampler.scaled(np.arange(3)).tolist() == [3, 0.5, 3]


def test_priorities_that_are_no_numbers_count_as_the_largest():
    store, fill = _filled(3)
    sampler = Prioritised(store, _random(), exponent=1.0)
    fill()
    sampler.feedback(np.array([0, 1, 2]), np.array([np.nan, 5.0, -1.0]))
    assert sampler.scaled(np.arange(3)).tolist() == [5, 5, 5]
    assert np.isfinite(sampler.draw(8, 0.0).weights).all()


@settings(deadline=None)
@given(keys=st.lists(st.integers(0, 30), min_size=1, max_size=40), removed=st.integers(0, 100))
def test_priorities_follow_their_unrolls_when_others_are_removed(keys, removed):
    store = Store(len(keys))
    sampler = Prioritised(store, _random(), exponent=1.0)
    keys = list(dict.fromkeys(keys))
    for key in keys:
        store.add(StoredUnroll(key, 0, b""))
    sampler.feedback(store.slots_of(np.array(keys)), np.array(keys) + 1.0)
    store.remove(removed % len(keys))
    left = [unroll.key for unroll in store.in_order()]
    found = sampler.scaled(store.slots_of(np.array(left, np.int64)))
    np.testing.assert_array_equal(found, np.array(left) + 1.0)


def test_numbers_move_in_a_line_over_a_share_of_the_run():
    assert [annealed(0.4, 1.0, at, 0.5) for at in (0, 0.25, 0.5, 1)] == [0.4, 0.7, 1.0, 1.0]
    assert annealed(3.0, 1.0, 0.0, 0.0) == 1.0
