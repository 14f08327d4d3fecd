"""A group of an actor's environments, on the learner that chooses their actions.

`batched_inference` holds the groups, and makes sure that their steps come in order and once.
"""

import enum
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments.types import Step

_INFERENCE_SECONDS = 60.0  # longer than any inference, including the first, which is compiled


class Turn(enum.Enum):
    """The states of a group in which it may play or must wait, where groups play in rounds."""

    GIVEN = "given"  # it may act on its newest entries, with which an unroll begins
    PLAYS = "plays"  # it is within an unroll; always without rounds
    NEEDED = "needed"  # its unroll has ended, and is being delivered
    WAITING = "waiting"  # its next call, a repeat, asks for a turn


class _Chosen(NamedTuple):
    """The actions and extras chosen from a group's newest entries."""

    actions: Any  # nest of [E, ...]
    extras: list[np.ndarray]  # flat, of [E, ...]


class EnvironmentGroup:
    """Environments of an actor that step together, and the unrolls that they are in."""

    def __init__(self, unroll: UnrollSpec, environments: int, initial_state: Sequence[np.ndarray]):
        """Begin with `initial_state`, an episode's first core state as a flat list of [1, ...]."""
        starts = [np.repeat(part, environments, axis=0) for part in initial_state]
        self.writer = UnrollWriter(unroll, environments, starts)
        self.size = environments
        self.numbers = np.zeros([environments], np.int32)  # of the environments in the run
        self.rows: np.ndarray | None = (
            None  # int32 [E]: rows of the state tables; None before a step
        )
        self._chosen: _Chosen | None = None  # most recently
        self._inferring_since: float | None = None  # time.monotonic(); None: no inference runs
        self._oldest = self._next = 0  # versions: the oldest that acted in this unroll, the newest
        self._unroll_ended = False
        self.turn = Turn.PLAYS

    def start_inference(self) -> None:
        """Record that a step of this group enters a batch."""
        self._inferring_since = time.monotonic()

    @property
    def inference_failed(self) -> bool:
        """Whether the last inference ended without actions: the group cannot continue."""
        since = self._inferring_since
        return since is not None and time.monotonic() - since > _INFERENCE_SECONDS

    def set_actions(self, actions: Any, extras: list[np.ndarray]) -> None:
        """Keep the actions for the newest entries.

        `actions` is a nest of [E, ...], `extras` a flat list of [E, ...].
        """
        self._chosen, self._inferring_since = _Chosen(actions, extras), None

    def write(self, step: Step, version: int) -> None:
        """Write a step, on which policy version `version` acts."""
        if self._chosen is None:
            self.writer.write_reset(step)
            self._oldest = version
        else:
            self._unroll_ended = self.writer.write(step, *self._chosen)
        self._next = version

    def need_turn(self) -> None:
        """Let the group wait before it acts on its newest entries, with which an unroll begins."""
        self.turn, self._inferring_since = Turn.NEEDED, None

    def begin_unroll(self, version: int) -> None:
        """Let a policy version act on the newest entries, now that the group has its turn."""
        self.turn, self._oldest, self._next = Turn.PLAYS, version, version

    def take_unrolls(self) -> tuple[list[bytes], int]:
        """Return the unrolls that the last step ended, if any, and the oldest version in them."""
        if not self._unroll_ended:
            return [], 0
        oldest, self._oldest, self._unroll_ended = self._oldest, self._next, False
        return self.writer.take_unrolls(), oldest
