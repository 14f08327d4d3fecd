"""What a store holds after any sequence of unrolls and removals."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.replay.store import Store, StoredUnroll


class Marks:
    """A follower with a mark for each slot: its unroll's version."""

    def __init__(self, store):
        self._store, self.marks = store, {}
        store.followers.append(self)

    def added(self, slot):
        self.marks[slot] = self._store[slot].version

    def moved(self, slot, to):
        self.marks[to] = self.marks[slot]

    def removed(self, slot):
        del self.marks[slot]


@settings(deadline=None)
@given(
    capacity=st.integers(1, 8),
    actions=st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60),
)
def test_slots_have_no_gaps_and_keys_lead_to_their_unrolls(capacity, actions):
    store = Store(capacity)
    marks, held = Marks(store), {}
    for key, (removes, number) in enumerate(actions):
        if store.size == store.capacity or (removes and store.size):
            slot = number % store.size
            del held[store[slot].key]
            store.remove(slot)
        store.add(StoredUnroll(key, 100 + key, b"x" * number))
        held[key] = number
        assert store.size == len(held)
        assert store.bytes == sum(held.values())
        assert set(store.keys[: store.size].tolist()) == set(held)
        for each in held:
            (slot,) = store.slots_of(np.array([each]))
            assert store[slot].key == each
            assert store.versions[slot] == marks.marks[slot] == 100 + each
        assert sorted(marks.marks) == list(range(store.size))
        assert store[store.oldest()].key == min(held)
        assert store[store.newest()].key == max(held)
        assert [unroll.key for unroll in store.in_order()] == sorted(held)
        assert len(store._order) <= 2 * capacity + 1, "memory does not grow with what is gone"
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
