"""Memory that a vector and its worker processes share: the actions of a step, and its results.

Steps are as large as their observations, so that they are not sent through a pipe: a worker writes
the rows of its environments where the vector reads them.
"""

import mmap
import os
from typing import Any

import numpy as np

from impala_mm.environments import nests

_ALIGNMENT = 64  # bytes, a cache line


class SharedNest:
    """A nest of arrays in shared memory."""

    def __init__(self, like: Any, number: int | None = None):
        """Share arrays like those of a nest, zeros at first; `number` is that of a file to join.

        Every process has to pass a nest of the same shapes and types. Without `number`, a file is
        created, which exists as long as a process holds it.
        """
        leaves = nests.flatten(like)
        starts = np.cumsum([0, *(-(-leaf.nbytes // _ALIGNMENT) * _ALIGNMENT for leaf in leaves)])
        size = max(int(starts[-1]), 1)
        given = os.memfd_create("impala_mm steps") if number is None else number
        self._file = os.fdopen(given, "r+b", buffering=0)
        if number is None:
            os.ftruncate(given, size)
        memory = mmap.mmap(given, size)  # the arrays keep it open
        self.arrays = [
            np.ndarray(leaf.shape, leaf.dtype, memory, int(start))
            for leaf, start in zip(leaves, starts, strict=False)
        ]
        self.nest = nests.pack(like, self.arrays)

    @property
    def number(self) -> int:
        """The number of the open file, which another process may join."""
        return self._file.fileno()

    def rows(self, first: int, count: int) -> list[np.ndarray]:
        """Return `count` rows of each array, from `first` on, in the order of `nests.flatten`."""
        return [array[first : first + count] for array in self.arrays]

    def close(self) -> None:
        """Close the file; the memory lasts as long as an array is used."""
        self._file.close()
