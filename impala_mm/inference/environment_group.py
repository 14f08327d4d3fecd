"""A group of environments elsewhere, as the learner that acts for it knows it: of `inference`.

Its calls come one after the other, numbered; what was answered is kept for the call that is
repeated because its answer got lost.
"""

import time
from collections.abc import Sequence

import numpy as np

from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments.types import Step
from impala_mm.transport.delivery import ACCEPTED, LOST, RUNNING

_INFERENCE_SECONDS = (
    60.0  # seconds in which an inference is over, the first, which is compiled, too
)
ACT = -1  # of a call: it is new, and to be inferred


class EnvironmentGroup:
    """Environments of an actor that step together, as their learner knows them."""

    def __init__(self, unroll: UnrollSpec, environments: int, start: Sequence[np.ndarray]):
        """`start`: the core state that an episode begins with, flat, of [1, ...]."""
        starts = [np.repeat(part, environments, axis=0) for part in start]
        self.assembly = UnrollWriter(unroll, environments, starts)
        self.rows = np.full([environments], -1, np.int32)  # of the tables, once it has begun
        self.chosen: tuple[np.ndarray, list[np.ndarray]] | None = None  # the last, and extras
        self._number, self._running = -1, False  # of the last call, and whether it is one still
        self._begun_at = 0.0  # time.monotonic() when the last call came, which is to be inferred
        self._inferring = False  # the last call is in a batch, or waits to be
        self._answer = b""  # the last call's
        self._oldest, self._complete = -1, False  # version that acted in this unroll; all is there

    @property
    def begun(self) -> bool:
        """Whether it has had its first step, the reset."""
        return self.chosen is not None

    def begin(self, number: int) -> tuple[int, bytes]:
        """Whether call `number` is to be inferred, and the answer if it was before."""
        if number == self._number and not self._running:
            return ACCEPTED, self._answer
        # Where an inference failed, its calls did, too; what was begun in it is of no use.
        failed = self._inferring and time.monotonic() - self._begun_at > _INFERENCE_SECONDS
        if number == self._number and not failed:
            return RUNNING, b""
        if number != self._number + 1:
            return LOST, b""
        self._number, self._running, self._begun_at = number, True, time.monotonic()
        self._inferring = True
        return ACT, b""

    def choose(self, actions: np.ndarray, extras: list[np.ndarray]) -> bytes:
        """What is to follow on its newest entry, int32 [E] and, flat, [E, ...]: its answer."""
        self.chosen, self._inferring = (actions, extras), False
        return actions.tobytes()

    def end(self, answer: bytes) -> None:
        """The last call is answered."""
        self._answer, self._running = answer, False

    def write(self, step: Step, version: int) -> None:
        """What a step brought; version `version` acts on it."""
        if self.chosen is None:
            self.assembly.begin(step)
            self._oldest = version
        else:
            self._complete = self.assembly.write(step, *self.chosen)
        self._next = version

    def cut(self) -> tuple[list[bytes], int]:
        """Unrolls that are whole and their version: none but where the last step ended them."""
        if not self._complete:
            return [], 0
        oldest, self._oldest, self._complete = self._oldest, self._next, False
        return self.assembly.cut(), oldest


class RowAllocator:
    """Rows of the tables: which are free."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self.count = 0  # of all there are

    def take(self, many: int) -> np.ndarray:
        """Free rows, int32 [many]; new ones where there are too few."""
        more = many - len(self._free)
        if more > 0:
            self._free += range(self.count, self.count + more)
            self.count += more
        taken, self._free = self._free[:many], self._free[many:]
        return np.array(taken, np.int32)

    def free(self, rows: np.ndarray) -> None:
        """They are nobody's any more."""
        self._free += [row for row in rows.tolist() if row >= 0]
