"""Groups of an actor's environments, on the learner that chooses their actions, and their states.

`batched_inference` holds the groups, makes sure that their steps come in order and once, and reads
and writes the core states of the environments in a batch.
"""

import enum
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

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


class EnvironmentGroup:
    """Environments of an actor that step together, and the unrolls that they are in."""

    def __init__(self, unroll: UnrollSpec, environments: int, initial_state: Sequence[np.ndarray]):
        """Begin with `initial_state`, an episode's first core state as a flat list of [1, ...]."""
        starts = [np.repeat(part, environments, axis=0) for part in initial_state]
        self.writer = UnrollWriter(unroll, environments, starts)
        self.size = environments
        self.numbers = np.zeros([environments], np.int32)  # of the environments in the run
        # int32 [E]: rows of the state tables; None before a step
        self.rows: np.ndarray | None = None
        # The actions and extras chosen most recently, as `set_actions` takes them.
        self._chosen: tuple[Any, list[np.ndarray]] | None = None
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
        self._chosen, self._inferring_since = (actions, extras), None

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


class StateTables:
    """The core states: a table on a device for each part, with a row for each environment."""

    def __init__(self, initial: Any, device: str):
        """Make empty tables for states like `initial`, an episode's first, a nest of [1, ...]."""
        self._structure, self._like = initial, tf.nest.flatten(initial)
        with tf.device(device):
            self._tables = [
                tf.Variable(_as_stored(part)[:0], False, shape=[None, *_as_stored(part).shape[1:]])
                for part in self._like
            ]
        self._free: list[int] = []
        self._released: list[np.ndarray] = []  # rows that the running batch may still write
        self.rows = 0  # rows in use or free

    def __len__(self) -> int:
        return len(self._tables)

    def allocate(self, count: int) -> np.ndarray:
        """Return `count` free rows, int32, some of them new; call `grow` before they are used."""
        more = count - len(self._free)
        if more > 0:
            self._free += range(self.rows, self.rows + more)
            self.rows += more
        rows, self._free = self._free[:count], self._free[count:]
        return np.array(rows, np.int32)

    def release(self, rows: np.ndarray) -> None:
        """Give up rows, even if the running batch may write them; `recycle` makes them free."""
        self._released.append(rows)

    def recycle(self) -> None:
        """Put released rows on the free list; no batch may run."""
        while self._released:
            self._free += self._released.pop().tolist()

    def grow(self) -> None:
        """Make room for all rows that were allocated."""
        for table in self._tables:
            missing = self.rows - int(table.shape[0] or tf.shape(table)[0])
            if missing > 0:
                more = tf.zeros([missing, *table.shape[1:]], table.dtype)
                table.assign(tf.concat([table, more], 0))

    def read(self, rows: tf.Tensor) -> Any:
        """Return the core states of these rows in a graph, a nest of [M, ...]."""
        parts = [
            _from_stored(tf.gather(table, rows), part)
            for table, part in zip(self._tables, self._like, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, parts)

    def write(self, rows: tf.Tensor, states: Any) -> list[tf.Tensor]:
        """Write core states [M, ...] to these rows in a graph; return the operations."""
        return [
            table.scatter_update(tf.IndexedSlices(_as_stored(part), rows))
            for table, part in zip(self._tables, tf.nest.flatten(states), strict=True)
        ]


def _as_stored(part: tf.Tensor) -> tf.Tensor:
    """Return a part of states [N, ...] in its table's format: integers as float32, bit for bit.

    TensorFlow would scatter a GPU's table of integers on the CPU, and copy all of it for that.
    """
    size = part.shape[1:].num_elements() * part.dtype.size
    if not part.dtype.is_integer or part.dtype.size > 4 or size % 4:
        return part
    if part.dtype.size == 4:
        return tf.bitcast(part, tf.float32)
    return tf.bitcast(tf.reshape(part, [-1, size // 4, 4 // part.dtype.size]), tf.float32)


def _from_stored(stored: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return stored states [N, ...] in the type and shape of `like`."""
    if stored.dtype == like.dtype:
        return stored
    return tf.reshape(tf.bitcast(stored, like.dtype), [-1, *like.shape[1:]])
