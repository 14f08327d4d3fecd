"""What a store holds after any sequence of unrolls and removals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.config.replay_mix import Part
from impala_mm.replay.samplers import SamplerSetup, Uniform
from impala_mm.replay.store import Store, StoredUnroll, pack, unpack


class Marks(Uniform):
    """A kind with a mark for each slot: its unroll's version."""

    def __init__(self, capacity):
        part = Part("uniform", 1.0, capacity, {})
        super().__init__(SamplerSetup(part, math.inf, np.random.default_rng(0)))
        self.marks, self.chosen = {}, 0

    def choose_removed(self):
        return self.chosen

    def added(self, slot):
        self.marks[slot] = self.store[slot].version

    def moved(self, slot, to):
        self.marks[to] = self.marks[slot]

    def removed(self, slot):
        del self.marks[slot]


@settings(deadline=None)
@given(
    capacity=st.integers(1, 8),
    actions=st.lists(st.integers(0, 20), max_size=60),
)
def test_slots_have_no_gaps_and_keys_lead_to_their_unrolls(capacity, actions):
    marks, held = Marks(capacity), {}
    store = marks.store
    for key, number in enumerate(actions):
        if store.size == store.capacity:
            marks.chosen = number % store.size
            del held[store[marks.chosen].key]
        marks.insert(StoredUnroll(key, 100 + key, b"x" * number))
        held[key] = number
        assert store.size == len(held)
        assert store.bytes == sum(held.values())
        assert {store[slot].key for slot in range(store.size)} == set(held)
        for each in held:
            (slot,) = store.slots_of(np.array([each]))
            assert store[slot].key == each
            assert store[slot].version == marks.marks[slot] == 100 + each
        assert sorted(marks.marks) == list(range(store.size))
        assert store[store.oldest()].key == min(held)
        assert store[store.newest()].key == max(held)
        assert [unroll.key for unroll in store.in_order()] == sorted(held)
        assert len(store._slots) == len(held), "memory does not grow with what is gone"
    assert (store.slots_of(np.array([-5, 10**9])) == -1).all()


def test_memory_is_a_limit_as_the_number_is():
    store = Store(100, max_bytes=25)
    for key in range(2):
        store.add(StoredUnroll(key, 0, b"1234567890"))
    assert not store.lacks_room(5)
    assert store.lacks_room(6)
    assert not Store(1, max_bytes=5).lacks_room(6), "an empty store takes any unroll"


def test_what_fits_follows_from_the_unrolls_that_are_stored():
    store = Store(100, max_bytes=250)
    assert store.expected_size() == 100
    store.add(StoredUnroll(0, 0, b"1"))
    assert store.expected_size() == 100
    store.add(StoredUnroll(1, 0, b"1" * 9))
    assert store.expected_size() == 50, "they have 5 bytes on average"
    tiny, unlimited = Store(100, max_bytes=2), Store(7)
    for each in (tiny, unlimited):
        each.add(StoredUnroll(0, 0, b"123"))
    assert (tiny.expected_size(), unlimited.expected_size()) == (1, 7)


def test_unrolls_are_packed_without_loss():
    content = b"unroll" * 1000
    assert len(pack(content)) < 100
    assert unpack(pack(content), len(content)) == content
    noise = np.random.default_rng(0).bytes(100)
    assert unpack(pack(noise), 100) == noise
    with pytest.raises(ValueError, match="100 bytes is none of 6000 bytes"):
        unpack(noise, 6000)
