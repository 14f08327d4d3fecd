"""A group of an actor's environments, as the learner that acts for it knows it.

Its calls come one after the other, numbered; what was answered is kept for the call that is
repeated because its answer got lost. `batched_inference` holds the groups.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments.types import Step
from impala_mm.transport.messages import Reply

_INFERENCE_SECONDS = 60.0  # in which an inference is over, the first, which is compiled, too


class _Chosen(NamedTuple):
    """What was chosen on a group's newest entries."""

    actions: np.ndarray  # int32 [E]
    extras: list[np.ndarray]  # flat, of [E, ...]


class EnvironmentGroup:
    """Environments of an actor that step together."""

    def __init__(self, unroll: UnrollSpec, environments: int, initial_state: Sequence[np.ndarray]):
        """`initial_state`: the core state that an episode begins with, flat, of [1, ...]."""
        starts = [np.repeat(part, environments, axis=0) for part in initial_state]
        self.writer = UnrollWriter(unroll, environments, starts)
        self.size = environments
        self.rows: np.ndarray | None = None  # of the tables, int32 [E], once it has started
        self._chosen: _Chosen | None = None  # last
        self._number: int | None = None  # of the last call
        self._running = False  # whether the last call is not answered yet
        self._started_at = 0.0  # time.monotonic() when the last call came
        self._inferring = False  # the last call is in a batch, or waits to be
        self._answer = b""  # the last call's
        self._oldest = self._next = 0  # versions: the oldest that acted in this unroll, the newest
        self._unroll_ended = False

    @property
    def has_started(self) -> bool:
        """Whether it has had its first step, the reset."""
        return self._chosen is not None

    def try_accept(self, number: int) -> tuple[Reply | None, bytes]:
        """Return (None, nothing) if call `number` is to be inferred; else a Reply, and the answer
        if there is one.
        """
        if number == self._number and not self._running:
            return Reply.ACCEPTED, self._answer
        # Where an inference failed, its calls did, too; what was begun in it is of no use.
        failed = self._inferring and time.monotonic() - self._started_at > _INFERENCE_SECONDS
        if number == self._number and not failed:
            return Reply.RUNNING, b""
        if number != (0 if self._number is None else self._number + 1):
            return Reply.LOST, b""
        self._number, self._running, self._started_at = number, True, time.monotonic()
        self._inferring = True
        return None, b""

    def set_actions(self, actions: np.ndarray, extras: list[np.ndarray]) -> bytes:
        """Keep what is chosen on the newest entries, int32 [E] and, flat, [E, ...]; return the
        answer to the call.
        """
        self._chosen, self._inferring = _Chosen(actions, extras), False
        return actions.tobytes()

    def complete(self, answer: bytes) -> None:
        """Record that the last call is answered."""
        self._answer, self._running = answer, False

    def write(self, step: Step, version: int) -> None:
        """Write what a step brought; version `version` acts on it."""
        if self._chosen is None:
            self.writer.write_reset(step)
            self._oldest = version
        else:
            self._unroll_ended = self.writer.write(step, *self._chosen)
        self._next = version

    def take_unrolls(self) -> tuple[list[bytes], int]:
        """Return the unrolls that the last step ended, if it ended any, and their version."""
        if not self._unroll_ended:
            return [], 0
        oldest, self._oldest, self._unroll_ended = self._oldest, self._next, False
        return self.writer.take_unrolls(), oldest
