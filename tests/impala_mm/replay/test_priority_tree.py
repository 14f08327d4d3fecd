"""The tree of priorities against arrays that are searched from end to end."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.replay.priority_tree import PriorityTree

WRITES = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.floats(0, 1e6)), min_size=1, max_size=20), max_size=10
)


def _write(tree, plain, write):
    slots = np.array([slot % len(plain) for slot, _ in write])
    tree.set(slots, np.array([value for _, value in write]))
    for slot, (_, value) in zip(slots, write, strict=True):
        plain[slot] = value


@settings(deadline=None)
@given(capacity=st.integers(1, 100), writes=WRITES)
def test_it_knows_the_sum_and_each_priority(capacity, writes):
    tree, plain = PriorityTree(capacity), np.zeros(capacity)
    for write in writes:
        _write(tree, plain, write)
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    np.testing.assert_allclose(tree.total, plain.sum(), rtol=1e-9)


@settings(deadline=None)
@given(capacity=st.integers(1, 100), writes=WRITES, places=st.lists(st.floats(0, 1), min_size=1))
def test_it_finds_the_slot_in_which_a_position_lies_and_never_an_empty_one(
    capacity, writes, places
):
    tree, plain = PriorityTree(capacity), np.zeros(capacity)
    for write in writes:
        _write(tree, plain, write)
    if not tree.total:
        return
    positions = np.array(places) * tree.total  # 1 is just beyond the end
    found = tree.find(positions)
    assert (plain[found] > 0).all()
    ends = np.cumsum(plain)
    slack = 1e-9 * ends[-1]
    assert (positions <= ends[found] + slack).all()
    assert (positions >= ends[found] - plain[found] - slack).all()


def test_slots_are_found_as_often_as_their_priorities_say():
    tree = PriorityTree(5)
    tree.set(np.arange(5), np.array([0, 1, 2, 0, 5.0]))
    found = tree.find(np.random.default_rng(0).random(80_000) * tree.total)
    counts = np.bincount(found, minlength=5) / 10_000
    np.testing.assert_allclose(counts, [0, 1, 2, 0, 5], atol=0.1)
