"""What travels: entries, unrolls of them, and batches of unrolls. The step convention stands here.

Entry t of an unroll (t = 0..T) is what the actor knew after a step:

        act on entry 0        act on entry 1                      act on entry T-1
    [entry 0] --- a_1 ---> [entry 1] --- a_2 ---> [entry 2] ... --- a_T ---> [entry T]
                            r_1, terminated_1,     r_2, ...                      |
                            truncated_1, o_1                                     |
                                                      entry 0 of the next unroll is this one

  * Entry t holds the action a_t and what the behaviour policy recorded with it (`extras`), the
    reward r_t, terminated_t and truncated_t that it brought, and the observation o_t that followed.
  * The network reads (o_t, r_t, a_t, first_t); its output at t is judged by entry t+1.
  * An episode's last observation is an entry of its own. The entry after it is a real reset: first
    is true there, its action was ignored and its reward is 0. That transition is nobody's step: it
    counts no frame, its discount is 0, and it has no policy, baseline or entropy term.
  * Elsewhere discount_t = gamma x (1 - terminated_t). A truncation keeps gamma: the value of the
    last observation is the bootstrap, and the masked transition after it lets nothing pass.
  * A lost life sets terminated without first: the game goes on, the training episode does not.
  * `start` is the core state before entry 0 is read.

Rewards in entries are raw; `losses.clip_reward` clips them for the network's input and the loss.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data.tensor_io import reinterpret


class Entry(NamedTuple):
    """One entry, or with leading axes many: [...] stands for none, [B], or [T+1, B]."""

    action: Any  # int32 [...]: a_t, which led here
    reward: Any  # float32 [...]: r_t, raw
    terminated: Any  # bool [...]: the episode ended here for good: nothing follows
    truncated: Any  # bool [...]: it was cut here: more would have followed
    observation: Any  # the environment's dtype [..., *shape]: o_t
    first: Any  # bool [...]: o_t came from a real reset, and a_t was ignored
    extras: Any  # nest, as the algorithm's act() returns it: recorded when a_t was chosen


class UnrollSpec(NamedTuple):
    """The shape of an algorithm's unrolls; transport and actors know no more of it than this."""

    length: int  # T: new entries in each unroll; only these count as frames
    overlap: int  # entries repeated from the unroll before: 1, or 1 + burn-in
    step: Entry  # of tf.TensorSpec, of one entry without leading axes
    start: Any  # nest of tf.TensorSpec: the core state of one environment before entry 0


class Unroll(NamedTuple):
    """One environment's unroll: entries [T+overlap, ...] and start [...]."""

    entries: Entry
    start: Any


class Batch(NamedTuple):
    """What a `BatchSource` gives and an algorithm's update takes: B unrolls, one per column."""

    unrolls: Entry  # [T+overlap, B, ...]
    start: Any  # nest of [B, ...]
    key: Any  # int64 [B]: names the unroll, for feedback to the source
    weight: Any  # float32 [B]: of its loss: 1, or 0 where there is no unroll (a padded batch)
    version: Any  # int64 [B]: the oldest policy version that acted in it
    fresh: Any  # bool [B]: straight from an actor, not from replay


class UnrollCodec:
    """Unrolls to bytes of a fixed length and back: every leaf's bytes, one after the other."""

    def __init__(self, spec: UnrollSpec):
        self._steps = spec.length + spec.overlap
        nest = Unroll(spec.step, spec.start)
        self._structure = nest
        time = [True] * len(tf.nest.flatten(spec.step)) + [False] * len(tf.nest.flatten(spec.start))
        self._leaves = [
            ([self._steps, *leaf.shape] if timed else list(leaf.shape), leaf.dtype, timed)
            for leaf, timed in zip(tf.nest.flatten(nest), time, strict=True)
        ]
        self._sizes = [int(np.prod(shape)) * dtype.size for shape, dtype, _ in self._leaves]
        self.size = sum(self._sizes)  # bytes of one unroll

    def arrays(self, rows: np.ndarray) -> Unroll:
        """Bytes of unrolls, uint8 [E, size], seen as what they mean: arrays in their memory.

        Entries are [E, T+overlap, ...], start is [E, ...].
        """
        parts = np.split(rows, np.cumsum(self._sizes)[:-1], axis=1)
        arrays = [
            part.view(dtype.as_numpy_dtype).reshape([len(rows), *shape])
            for part, (shape, dtype, _) in zip(parts, self._leaves, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, arrays)

    def decode(self, content: tf.Tensor) -> tuple[Entry, Any]:
        """B unrolls (string [B]) as entries [T+overlap, B, ...] and start [B, ...]; in a graph."""
        raw = tf.io.decode_raw(content, tf.uint8, fixed_length=None)  # [B, size]
        raw = tf.ensure_shape(raw, [None, self.size])
        leaves = []
        for part, (shape, dtype, timed) in zip(
            tf.split(raw, self._sizes, axis=1), self._leaves, strict=True
        ):
            leaf = reinterpret(part, [None, *shape], dtype)
            if timed:  # [B, T, ...] -> [T, B, ...]
                leaf = tf.transpose(leaf, [1, 0, *range(2, len(shape) + 1)])
            leaves.append(leaf)
        unroll = tf.nest.pack_sequence_as(self._structure, leaves)
        return unroll.entries, unroll.start


def structure_digest(nest_of_specs: Any) -> str:
    """Short name of a structure of tensors: equal where structure, shapes and dtypes are."""
    described = tf.nest.map_structure(lambda s: f"{list(s.shape)} {s.dtype.name}", nest_of_specs)
    return hashlib.sha256(repr(described).encode()).hexdigest()[:12]
