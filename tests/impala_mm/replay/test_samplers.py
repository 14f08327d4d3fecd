"""Uniform and prioritised draws, and the weights that correct for them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.config import replay_mix
from impala_mm.replay.samplers import PriorityTree, SamplerSetup, importance_weights, make_replay
from impala_mm.replay.store import StoredUnroll


def _replay(capacity, size=0, kind="prioritised", **options):
    text = ":".join([kind, "1", f"{capacity}", *(f"{n}={value}" for n, value in options.items())])
    (part,) = replay_mix.parse(text).replays
    replay = make_replay(SamplerSetup(part, math.inf, np.random.default_rng(0)))
    for key in range(size):
        replay.insert(StoredUnroll(key, 0, b""))
    return replay


def _scaled(replay, slots):
    """Return the priorities of slots to the power of the exponent."""
    return replay.state(np.asarray(slots))["priorities"]


def test_uniform_draws_each_unroll_equally_often_and_none_twice_at_once():
    sampler, counts = _replay(10, 10, "uniform"), np.zeros(10)
    for _ in range(2000):
        draw = sampler.draw(5, 0.0)
        assert len(set(draw.slots.tolist())) == 5
        assert (draw.weights == 1).all()
        counts[draw.slots] += 1
    np.testing.assert_allclose(counts, 1000, rtol=0.1)
    assert len(sampler.draw(25, 0.0).slots) == 25


def test_at_full_correction_unrolls_down_to_a_tenth_of_the_mean_priority_count_equally():
    sampler = _replay(5, 5, exponent=0.5, correction=1.0)
    powers = np.array([0.04, 0.25, 1.0, 4.0, 7.0])  # the first is below a tenth of the mean
    sampler.feedback(np.arange(5), powers**2)
    counts, weighted = np.zeros(5), np.zeros(5)
    for _ in range(4000):
        draw = sampler.draw(14, 0.0)
        np.add.at(counts, draw.slots, 1)
        np.add.at(weighted, draw.slots, draw.weights)
    share = powers / powers.sum()
    np.testing.assert_allclose(counts / 4000, 14 * share, rtol=0.1)
    np.testing.assert_allclose(weighted[1:] / 4000, 14 / 5, rtol=0.05)
    assert weighted[0] / 4000 == pytest.approx(14 * share[0] * 10, rel=0.1)
    assert draw.measured["priority_largest"] == 49


def test_the_correction_is_the_power_of_the_weights():
    priorities = np.array([0.01, 1.0, 3.0, 7.5])
    found = importance_weights(priorities, 3.0, 0.7)
    np.testing.assert_allclose(found, np.array([10, 3, 1, 0.4]) ** 0.7, rtol=1e-6)


@pytest.mark.parametrize(
    ("progress", "final", "correction"),
    [(0.0, 1, 0.4), (0.25, 1, 0.7), (0.5, 1, 1.0), (1.0, 1, 1.0), (0.25, 0.4, 0.4)],
)
def test_the_correction_goes_to_its_final_value_over_its_share_of_the_run(
    progress, final, correction
):
    sampler = _replay(4, 4, exponent=1.0, correction=0.4, final=final, anneal=0.5)
    sampler.feedback(np.arange(4), np.array([1.0, 2.0, 4.0, 9.0]))
    draw = sampler.draw(16, progress)
    expected = importance_weights(_scaled(sampler, draw.slots), 4.0, correction)
    np.testing.assert_allclose(draw.weights, expected, rtol=1e-6)
    assert draw.weights.min() < 1


def test_a_new_unroll_has_the_largest_priority_so_far():
    sampler = _replay(3, 1, exponent=1.0)
    sampler.feedback(np.array([0]), np.array([9.0]))
    sampler.feedback(np.array([0]), np.array([0.0]))
    sampler.insert(StoredUnroll(1, 0, b""))
    scaled = _scaled(sampler, np.arange(2))
    assert scaled[1] == 9
    assert 0 < scaled[0] < 1e-5, "it may still be drawn"


def test_priorities_that_are_no_numbers_count_as_the_largest():
    sampler = _replay(3, exponent=1.0)
    for key, priority in enumerate([3.0, 0.5, float("nan")]):
        sampler.insert(StoredUnroll(key, 0, b"", priority))
    assert _scaled(sampler, np.arange(3)).tolist() == [3, 0.5, 3]
    sampler.feedback(np.array([0, 1, 2]), np.array([np.nan, 5.0, -1.0]))
    assert _scaled(sampler, np.arange(3)).tolist() == [5, 5, 5]
    assert np.isfinite(sampler.draw(8, 0.0).weights).all()


@settings(deadline=None)
@given(keys=st.lists(st.integers(0, 30), min_size=2, max_size=40, unique=True))
def test_priorities_follow_their_unrolls_when_others_are_removed(keys):
    sampler = _replay(len(keys), exponent=1.0)
    for key in keys:
        sampler.insert(StoredUnroll(key, 0, b""))
    sampler.write_priorities(np.array(keys), np.array(keys) + 1.0)
    sampler.insert(StoredUnroll(99, 0, b""))  # the first one makes room
    left = np.array([unroll.key for unroll in sampler.store.in_order()])
    assert left.tolist() == [*keys[1:], 99]
    found = _scaled(sampler, sampler.store.slots_of(left))
    np.testing.assert_array_equal(found, [*(left[:-1] + 1.0), max(keys) + 1.0])


WRITES = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.floats(0, 1e6)), min_size=1, max_size=20), max_size=10
)


@settings(deadline=None)
@given(capacity=st.integers(1, 100), writes=WRITES, places=st.lists(st.floats(0, 1), min_size=1))
def test_a_tree_knows_the_sum_and_finds_the_slot_in_which_a_position_lies(capacity, writes, places):
    tree, plain = PriorityTree(capacity), np.zeros(capacity)
    for write in writes:
        slots = np.array([slot % capacity for slot, _ in write])
        tree.set(slots, np.array([value for _, value in write]))
        for slot, (_, value) in zip(slots, write, strict=True):
            plain[slot] = value
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    np.testing.assert_allclose(tree.total, plain.sum(), rtol=1e-9)
    if not tree.total:
        return
    positions = np.array(places) * tree.total  # 1 is just beyond the end
    found = tree.find(positions)
    assert (plain[found] > 0).all(), "never an empty one"
    ends = np.cumsum(plain)
    slack = 1e-9 * ends[-1]
    assert (positions <= ends[found] + slack).all()
    assert (positions >= ends[found] - plain[found] - slack).all()
