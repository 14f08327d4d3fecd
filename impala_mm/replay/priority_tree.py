"""A tree of priorities: draws in proportion to them, and their sum, in logarithmic time.

    level 0            s0 + s1 + s2 + s3             the root is node 1
    level 1       s0 + s1        s2 + s3             node n has the children 2n and 2n + 1
    leaves       s0     s1      s2     s3            slot i is node size + i

Whole arrays of slots go through one level after the other, so that NumPy does the work.
"""

import numpy as np


class PriorityTree:
    """The priorities of slots, with the sums of every part of them.

    A slot of priority 0 is never drawn.
    """

    def __init__(self, capacity: int):
        self._size = 1 << max(capacity - 1, 1).bit_length()
        self._sums = np.zeros(2 * self._size)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._sums[1])

    def get(self, slots: np.ndarray) -> np.ndarray:
        """Return the priorities of these slots, float64 [N]."""
        return self._sums[self._size + slots]

    def set(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Give these slots, int64 [N], new priorities; of a repeated slot the last one counts."""
        nodes = self._size + np.asarray(slots, np.int64)
        self._sums[nodes] = priorities
        while len(nodes) and nodes[0] > 1:  # all are on one level
            nodes = nodes >> 1
            left = 2 * nodes
            self._sums[nodes] = self._sums[left] + self._sums[left + 1]

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Return the slot in which each position, float64 [N] from 0 to below `total`, lies."""
        nodes = np.ones(len(positions), np.int64)
        rest = np.array(positions, np.float64)
        while len(nodes) and nodes[0] < self._size:
            left = 2 * nodes
            before = self._sums[left]
            # A rounded sum must not lead into a part that is empty.
            goes_right = (rest >= before) & (self._sums[left + 1] > 0)
            rest = np.where(goes_right, rest - before, rest)
            nodes = left + goes_right
        return nodes - self._size
