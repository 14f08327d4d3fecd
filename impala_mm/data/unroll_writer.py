"""Writes what environments do into unrolls, step by step, in the bytes that travel.

An actor's `Player` fills one writer for each of its groups of environments, and so does
`inference`, where the learner acts for actors that only step. The step convention is
`trajectory`'s; this file is how it comes about.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.environments.types import Step


class UnrollWriter:
    """The unrolls that E environments, which step together, are in.

    One round is: read `newest`, act on it, step, `write`; after the last write of an unroll,
    `take_unrolls`.
    """

    newest: Entry  # that is to be read next, [E, ...], before the next step; without extras

    def __init__(self, spec: UnrollSpec, num_envs: int, initial_state: Any):
        """`initial_state`: the core's, nest of [E, ...]."""
        self._length, self._overlap = spec.length, spec.overlap
        self._observed = spec.step.observation.dtype.as_numpy_dtype
        codec = UnrollCodec(spec)
        self._rows = np.zeros([num_envs, codec.size], np.uint8)
        self._entries, start = codec.arrays(self._rows)  # [E, T+overlap, ...], [E, ...]
        self._timed: list[np.ndarray] = tf.nest.flatten(self._entries)
        self._extras: list[np.ndarray] = tf.nest.flatten(self._entries.extras)
        self._start: list[np.ndarray] = tf.nest.flatten(start)
        self._broken = np.zeros([num_envs], bool)
        self._written = 0  # entries of this unroll that are there
        self._read = spec.overlap - 1  # the number of the newest entry since the beginning
        # The core state before entry 0 of this unroll is read, and of those begun after it: numbers
        # 0, T, 2T... Before the first step there is nothing but resets, and nobody reads them.
        begun = len(range(0, self._read, spec.length))
        self._starts = deque([tf.nest.flatten(initial_state)] * begun)

    def write_reset(self, step: Step) -> None:
        """Write the first entry, a reset of all; where unrolls overlap by more, it fills them."""
        nothing = np.zeros([len(self._rows)], np.int32)
        for t in range(self._overlap):
            self._put(t, step, nothing)
        self._written = self._overlap

    @property
    def at_unroll_start(self) -> bool:
        """Whether an unroll starts with the newest entry: then `set_start_state` is due."""
        return self._read % self._length == 0

    def set_start_state(self, state: Sequence[Any]) -> None:
        """Keep the core state before the newest entry is read: flat, of [E, ...]."""
        self._starts.append(state)

    def write(self, step: Step, actions: np.ndarray, extras: Sequence[Any]) -> bool:
        """Write what acting on the newest entry brought; return whether this ends the unroll.

        `actions` int32 [E]; `extras`, flat, of [E, ...]: as act() returned them.
        """
        t = self._written
        self._put(t, step, actions)
        for array, value in zip(self._extras, extras, strict=True):
            array[:, t] = value
        self._broken |= step.fault
        self._written += 1
        self._read += 1
        return self._written == self._length + self._overlap

    def take_unrolls(self) -> list[bytes]:
        """Return the unrolls of all environments that had no fault, as `UnrollCodec` reads them;
        the next unroll begins.
        """
        for array, value in zip(self._start, self._starts.popleft(), strict=True):
            array[...] = value
        contents = [self._rows[e].tobytes() for e in np.flatnonzero(~self._broken)]
        for array in self._timed:
            array[:, : self._overlap] = array[:, self._length :]
        if self._broken.any():
            # Nothing of what was before a fault: the newest entry is the reset after it.
            for array in self._timed:
                reset = array[self._broken, self._overlap - 1, None]
                array[self._broken, : self._overlap - 1] = reset
            self._broken[:] = False
        self._written = self._overlap
        return contents

    def _put(self, t: int, step: Step, actions: np.ndarray) -> None:
        entries = self._entries
        entries.action[:, t] = actions
        entries.reward[:, t], entries.first[:, t] = step.reward, step.first
        entries.terminated[:, t], entries.truncated[:, t] = step.terminated, step.truncated
        entries.observation[:, t] = step.observation
        self.newest = Entry(
            np.asarray(actions, np.int32),
            np.asarray(step.reward, np.float32),
            step.terminated,
            step.truncated,
            np.asarray(step.observation, self._observed),
            np.asarray(step.first, np.bool_),
            None,
        )
