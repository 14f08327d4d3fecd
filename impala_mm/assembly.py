"""What environments do, cut into unrolls: whoever acts for them fills an Assembly step by step.

An actor's Player is one of those, and `inference` is the other, where the learner acts for actors
that only step. The step convention is `trajectory`'s; this file is how it comes about.
"""

from collections import deque
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.environments import Step
from impala_mm.trajectory import Codec, Entry, Unroll, UnrollSpec


class Assembly:
    """The newest entries of E environments that step together.

    One round is: read `newest`, act on it, step, `write`; after the last write of an unroll, `cut`.
    """

    def __init__(self, spec: UnrollSpec, num_envs: int, initial_state: Any):
        """`initial_state`: the core's, nest of [E, ...]."""
        self._length, self._overlap = spec.length, spec.overlap
        self._codec = Codec(spec)
        self._entries: Entry = tf.nest.map_structure(
            lambda s: np.zeros(
                [spec.length + spec.overlap, num_envs, *s.shape], s.dtype.as_numpy_dtype
            ),
            spec.step,
        )  # [T+overlap, E, ...]
        self._broken = np.zeros([num_envs], bool)
        self._written = 0  # entries of this unroll that are there
        self._read = spec.overlap - 1  # the number of the newest entry since the beginning
        # The core state before entry 0 of this unroll is read, and of those begun after it: numbers
        # 0, T, 2T... Before the first step there is nothing but resets, and nobody reads them.
        self._starts = deque([initial_state] * len(range(0, self._read, spec.length)))

    def begin(self, step: Step) -> None:
        """The first entry, a reset of all; where unrolls overlap by more, it fills them."""
        for t in range(self._overlap):
            self._put(t, step)
        self._written = self._overlap

    @property
    def newest(self) -> Entry:
        """The entry that is to be read next, [E, ...]."""
        return tf.nest.map_structure(lambda array: array[self._written - 1], self._entries)

    @property
    def starts(self) -> bool:
        """Whether an unroll begins with the newest entry: `begins_with` wants the state before."""
        return self._read % self._length == 0

    def begins_with(self, state: Any) -> None:
        """The core state, nest of [E, ...], before the newest entry is read."""
        self._starts.append(state)

    def write(self, step: Step, actions: np.ndarray, extras: Any) -> bool:
        """What acting on the newest entry brought; True where with this entry the unroll is whole.

        `actions` int32 [E]; `extras` nest of [E, ...]: as act() gave them.
        """
        t = self._written
        self._put(t, step)
        self._entries.action[t] = actions
        tf.nest.map_structure(
            lambda array, value: array.__setitem__(t, np.asarray(value)),
            self._entries.extras,
            extras,
        )
        self._broken |= step.fault
        self._written += 1
        self._read += 1
        return self._written == self._length + self._overlap

    def cut(self) -> list[bytes]:
        """The unrolls of all environments that came through whole; the next one begins."""
        start = tf.nest.map_structure(np.asarray, self._starts.popleft())
        contents = [
            self._codec.encode(
                Unroll(
                    tf.nest.map_structure(lambda a, e=e: a[:, e], self._entries),
                    tf.nest.map_structure(lambda a, e=e: a[e], start),
                )
            )
            for e in np.flatnonzero(~self._broken)
        ]
        for array in tf.nest.flatten(self._entries):
            array[: self._overlap] = array[self._length :]
            # Nothing of what was before a fault: the newest entry is the reset after it.
            array[: self._overlap - 1, self._broken] = array[self._overlap - 1, self._broken]
        self._broken[:] = False
        self._written = self._overlap
        return contents

    def _put(self, t: int, step: Step) -> None:
        entries = self._entries
        entries.reward[t], entries.first[t] = step.reward, step.first
        entries.terminated[t], entries.truncated[t] = step.terminated, step.truncated
        entries.observation[t] = step.observation
