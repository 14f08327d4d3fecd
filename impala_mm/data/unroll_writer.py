"""Writing the steps of environments into unrolls, directly in the bytes that are sent.

An actor's `UnrollPlayer` fills one writer for each of its groups of environments; with
--inference=learner, the learner's `inference` does so. `data/trajectory.py` explains the entries
that are written here.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.environments.types import Step


class UnrollWriter:
    """The unfinished unrolls of E environments that step together.

    For each step, the caller reads `newest`, chooses actions for it, steps the environments and
    calls `write`. After the last step of an unroll it calls `take_unrolls`.
    """

    newest: Entry  # [E, ...]: the newest entry, without extras, to choose the next actions from

    def __init__(self, spec: UnrollSpec, num_envs: int, initial_state: Any):
        """Make a writer; `initial_state` is that of the network, a nest of [E, ...]."""
        self._length, self._overlap = spec.length, spec.overlap
        self._dtypes = [
            [leaf.dtype.as_numpy_dtype for leaf in tf.nest.flatten(part)]
            for part in (spec.step.action, spec.step.observation)
        ]
        codec = UnrollCodec(spec)
        self._rows = np.zeros([num_envs, codec.size], np.uint8)
        self._entries, start = codec.arrays(self._rows)  # [E, T+overlap, ...], [E, ...]
        # [E, T+overlap]: the environment had a fault.
        self._faults = np.zeros([num_envs, spec.length + spec.overlap], bool)
        self._timed_arrays: list[np.ndarray] = [self._faults, *tf.nest.flatten(self._entries)]
        self._actions: list[np.ndarray] = tf.nest.flatten(self._entries.action)
        self._observations: list[np.ndarray] = tf.nest.flatten(self._entries.observation)
        self._extras: list[np.ndarray] = tf.nest.flatten(self._entries.extras)
        self._masks: list[np.ndarray] = tf.nest.flatten(self._entries.mask)
        self._no_actions = tf.nest.map_structure(
            lambda array: np.zeros_like(array[:, 0]), self._entries.action
        )
        self._start: list[np.ndarray] = tf.nest.flatten(start)
        self._written = 0  # entries of this unroll that are written
        self._newest_number = spec.overlap - 1  # counted from the first entry of all
        # The network's states before the entries at which unrolls start (numbers 0, T, 2T, ...):
        # for this unroll, and for the next ones whose first entries are already written. Entries
        # before the first step are copies of the reset, which the network does not read, so their
        # state is the initial one.
        begun = len(range(0, self._newest_number, spec.length))
        self._starts = deque([tf.nest.flatten(initial_state)] * begun)

    def write_reset(self, step: Step) -> None:
        """Write the reset of all environments as the first entries, as many as unrolls overlap."""
        for t in range(self._overlap):
            self._put(t, step, self._no_actions)
        self._written = self._overlap

    @property
    def at_unroll_start(self) -> bool:
        """Whether an unroll starts at the newest entry; then `set_start_state` must be called."""
        return self._newest_number % self._length == 0

    def set_start_state(self, state: Sequence[Any]) -> None:
        """Store the network's state before it reads the newest entry: a flat list of [E, ...]."""
        self._starts.append(state)

    def write(self, step: Step, actions: Any, extras: Sequence[Any]) -> bool:
        """Write the entry that follows the newest one; return whether it completes the unroll.

        `actions`, a nest of [E, ...], and `extras`, a flat list of [E, ...], are what act()
        returned for the newest entry; `step` is what the environments returned for these actions.
        """
        t = self._written
        self._put(t, step, actions)
        for array, value in zip(self._extras, extras, strict=True):
            array[:, t] = value
        self._written += 1
        self._newest_number += 1
        return self._written == self._length + self._overlap

    @property
    def unbroken(self) -> list[int]:
        """The environments that had no fault in any entry of this unroll."""
        return np.flatnonzero(~self._faults.any(axis=1)).tolist()

    def take_unrolls(self) -> list[bytes]:
        """Return the complete unrolls as bytes for `UnrollCodec`, and start the next ones.

        The unrolls of environments that had a fault are left out.
        """
        for array, value in zip(self._start, self._starts.popleft(), strict=True):
            array[...] = value
        contents = [self._rows[e].tobytes() for e in self.unbroken]
        for array in self._timed_arrays:
            array[:, : self._overlap] = array[:, self._length :]
        self._written = self._overlap
        return contents

    def _put(self, t: int, step: Step, actions: Any) -> None:
        entries = self._entries
        _write(self._actions, t, actions)
        _write(self._observations, t, step.observation)
        if self._masks:
            _write(self._masks, t, step.mask)
        entries.reward[:, t], entries.first[:, t] = step.reward, step.first
        entries.terminated[:, t], entries.truncated[:, t] = step.terminated, step.truncated
        self._faults[:, t] = step.fault
        self.newest = Entry(
            _as_types(self._dtypes[0], actions),
            np.asarray(step.reward, np.float32),
            step.terminated,
            step.truncated,
            _as_types(self._dtypes[1], step.observation),
            np.asarray(step.first, np.bool_),
            None,
            step.mask if self._masks else (),
        )


def _write(arrays: list[np.ndarray], t: int, nest: Any) -> None:
    """Write a nest of [E, ...] at entry t of arrays [E, T+overlap, ...]."""
    for array, value in zip(arrays, tf.nest.flatten(nest), strict=True):
        array[:, t] = value


def _as_types(dtypes: list[Any], nest: Any) -> Any:
    """Return a nest of arrays in these types, without copying those that have them."""
    if isinstance(nest, np.ndarray):  # most nests are one array
        return np.asarray(nest, dtypes[0])
    arrays = zip(tf.nest.flatten(nest), dtypes, strict=True)
    return tf.nest.pack_sequence_as(nest, [np.asarray(each, dtype) for each, dtype in arrays])
