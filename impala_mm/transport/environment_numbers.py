"""The numbers of a run's environments, by which each may explore in its own way.

A learner numbers the environments of its actors from 0 in the order in which the actors first join,
and an actor that is restarted gets its numbers again. So that no two learners give the same number,
learner r of L uses every L-th number: r, r + L, r + 2 L... An actor keeps its numbers when it moves
to another learner of the run, which it tells them, and which reserves none for it. When a run is
resumed, they are given anew.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class NumberRange(NamedTuple):
    """The numbers of an actor's environments: first, first + stride, first + 2 x stride..."""

    first: int
    stride: int
    # More than the largest number in the run: the number of environments, if all learners have
    # equally many.
    bound: int

    def numbers(self, begin: int, size: int) -> np.ndarray:
        """Return the numbers of `size` environments of the actor from its number `begin`, int32."""
        return (self.first + self.stride * np.arange(begin, begin + size)).astype(np.int32)


class EnvironmentNumbers:
    """The environments of the actors that have joined one learner."""

    def __init__(self, rank: int, learners: int):
        """Give numbers to the environments of learner `rank` of this many learners."""
        self._rank, self._learners = rank, learners
        self._lock = threading.Lock()
        self._ranges: dict[int, tuple[int, Sequence[int]]] = {}  # (first, groups' sizes), by actor
        self.used = 0  # environments that have a number
        self.most = 0  # the largest `used` of all learners, as far as is known

    @property
    def count(self) -> int:
        """A number that is larger than those of all environments in the run."""
        return self._learners * max(self.used, self.most)

    def join(self, actor: int, sizes: Sequence[int], first: int | None = None) -> NumberRange:
        """Return the numbers of an actor's environments, which are in groups of these sizes.

        `first` is its first number if a learner of the run has given it its numbers before.
        """
        with self._lock:
            next_one = self._rank + self._learners * self.used
            known, of_known = self._ranges.get(actor, (next_one, ()))
            if first is None and sum(sizes) > sum(of_known):
                known, self.used = next_one, self.used + sum(sizes)
            first = known if first is None else first
            if sizes:
                self._ranges[actor] = first, list(sizes)
            return NumberRange(first, self._learners, self.count)

    def sizes(self, actor: int) -> Sequence[int]:
        """Return the sizes of an actor's groups; empty if it has named none."""
        return self._ranges.get(actor, (0, ()))[1]

    def has_room(self, actor: int, environments: int, first: int | None = None) -> bool:
        """Return whether an actor with this many environments can get numbers, which are int32.

        For `first` see `join`.
        """
        with self._lock:
            if first is not None:
                return first + self._learners * environments < 2**31
            more = environments if environments > sum(self.sizes(actor)) else 0
            return self._learners * (self.used + more) < 2**31

    def of_group(self, actor: int, group: int, size: int) -> np.ndarray:
        """Return the numbers of an actor's group of `size` environments, int32 [size]."""
        with self._lock:
            first, sizes = self._ranges.get(actor, (self._rank, []))
        return NumberRange(first, self._learners, self.count).numbers(sum(sizes[:group]), size)
