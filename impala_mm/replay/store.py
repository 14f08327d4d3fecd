"""The store of a replay: unrolls as they travelled, compressed, in slots without gaps.

A store holds references to the unrolls' bytes, so an unroll that several stores hold takes its
memory once. A sampler draws slots, and chooses those that make room.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from impala_mm.data.compression import compress_lz4, decompress


class StoredUnroll(NamedTuple):
    """One unroll."""

    key: int  # counts the unrolls that this learner has received
    version: int  # the oldest policy version that chose actions in it
    # The bytes of `UnrollCodec`, compressed if that makes them shorter; they may lie in a file.
    content: bytes | memoryview
    priority: float | None = None  # the one that it begins with; None: the largest so far


def pack(content: bytes) -> bytes:
    """Return an unroll's bytes as they are stored."""
    return compress_lz4(content)


def unpack(content: bytes | memoryview, size: int) -> bytes:
    """Return the `size` bytes of an unroll that was packed, or never was."""
    found = decompress(content, size)
    if found is None:
        raise ValueError(f"a stored unroll of {len(content)} bytes is none of {size} bytes")
    return found


class Store:
    """Unrolls in the slots 0 to `size` - 1.

    Where an unroll is removed, the last one takes its slot, so a caller that kept a slot asks by
    key again.
    """

    def __init__(self, capacity: int, max_bytes: float = float("inf")):
        self.capacity, self.max_bytes = capacity, max_bytes
        self.bytes = 0
        # How often each unroll was drawn. Zeros take memory only once they are written, so a large
        # capacity costs nothing.
        self.uses = np.zeros(capacity, np.int64)
        self._unrolls: list[StoredUnroll] = []
        self._slots = OrderedDict[int, int]()  # by key, from the oldest to the newest

    @property
    def size(self) -> int:
        """The number of unrolls."""
        return len(self._unrolls)

    def __getitem__(self, slot: int) -> StoredUnroll:
        return self._unrolls[slot]

    def slots_of(self, keys: np.ndarray) -> np.ndarray:
        """Return the slot of each key, int64 [N]; -1 where the store no longer holds the unroll."""
        return np.array([self._slots.get(key, -1) for key in keys.tolist()], np.int64)

    def oldest(self) -> int:
        """Return the slot of the unroll that was stored first; the store is not empty."""
        return next(iter(self._slots.values()))

    def newest(self) -> int:
        """Return the slot of the unroll that was stored last; the store is not empty."""
        return next(reversed(self._slots.values()))

    def lacks_room(self, content_bytes: int) -> bool:
        """Return whether one more unroll of this size exceeds the capacity or the memory."""
        return bool(self.size) and (
            self.size == self.capacity or self.bytes + content_bytes > self.max_bytes
        )

    def expected_size(self) -> int:
        """Return how many unrolls fit, if they are as large as those that are stored."""
        fits = self.max_bytes * self.size / self.bytes if self.bytes else math.inf
        return int(min(self.capacity, max(fits, 1)))

    def add(self, unroll: StoredUnroll) -> None:
        """Store an unroll, for which there is room, and whose key is new."""
        self.uses[self.size] = 0
        self._slots[unroll.key] = self.size
        self._unrolls.append(unroll)
        self.bytes += len(unroll.content)

    def replace(self, unroll: StoredUnroll) -> None:
        """Let the bytes of an unroll, which are the same, lie elsewhere, if it is still stored."""
        slot = self._slots.get(unroll.key)
        if slot is not None:
            self._unrolls[slot] = unroll

    def make_older(self, updates: int) -> None:
        """Subtract a number from the policy versions of all unrolls."""
        self._unrolls = [u._replace(version=u.version - updates) for u in self._unrolls]

    def remove(self, slot: int) -> None:
        """Remove the unroll in a slot; the last one takes its slot."""
        gone, moved = self._unrolls[slot], self._unrolls.pop()
        del self._slots[gone.key]
        self.bytes -= len(gone.content)
        if slot != self.size:
            self._unrolls[slot] = moved
            self._slots[moved.key] = slot
            self.uses[slot] = self.uses[self.size]

    def sort(self) -> None:
        """Let unrolls be the newer, the larger their keys, in whatever order they were added."""
        self._slots = OrderedDict(sorted(self._slots.items()))

    def in_order(self) -> list[StoredUnroll]:
        """Return all unrolls, from the oldest to the newest."""
        return [self._unrolls[slot] for slot in self._slots.values()]
