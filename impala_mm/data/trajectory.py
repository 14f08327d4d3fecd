"""Entries, unrolls and batches, and the step convention that all parts of the program follow.

An actor writes an entry after each step of an environment. An unroll is T+1 consecutive entries of
one environment, and a batch is B unrolls. The actor chooses the action of an entry from the entry
before it:

        act on entry 0         act on entry 1                     act on entry T-1
    [entry 0] --- a_1 ---> [entry 1] --- a_2 ---> [entry 2] ... --- a_T ---> [entry T]
                           r_1, o_1,              r_2, o_2,                      |
                           terminated_1,          ...                            |
                           truncated_1                      entry 0 of the next unroll is the same

  * Entry t holds the action a_t; the reward r_t, terminated_t and truncated_t that the environment
    returned for this action; the observation o_t after it; first_t, which is true if o_t is the
    observation of a reset; and `extras`, which the algorithm recorded when it chose a_t. IMPALA's
    extras are the logits of the behaviour policy.
  * The network reads o_t, r_t, a_t and first_t. From its output at entry t the action a_{t+1} is
    chosen, so the loss compares the output at entry t with the contents of entry t+1.
  * If the environment offers masks of its actions, a_{t+1} is one of the choices that the mask of
    entry t allows. After a termination the mask allows everything, and in entries that padding
    fills it may forbid everything: no action is chosen there.
  * The last observation of an episode is in the entry where terminated or truncated is true. The
    next entry is the reset: its first is true, its reward is 0, and its action was ignored by the
    environment. The transition to this entry is not a step: it is not counted as a frame, its
    discount is 0, and it adds nothing to the policy, baseline and entropy losses.
  * Every other transition has the discount gamma x (1 - terminated). After a termination no return
    follows. After a truncation the discount stays gamma: the value of the last observation is the
    bootstrap, and the masked transition to the reset keeps the next episode's rewards out.
  * A lost life in Atari sets terminated in its entry, but no reset follows: the next entry
    continues the game, and the network keeps its state. With --life_loss_ends=false it sets
    nothing. With --fire_after_life_loss the next entry counts as a reset, in which FIRE is pressed;
    if nothing is set before it, the value of the entry before is the bootstrap, as at a truncation.
  * Where first_t is true, the network starts from its initial state and reads zeros in place of r_t
    and a_t. `start` is its state before entry 0 is read.
  * An algorithm may ask for a larger overlap of its unrolls than one entry. They then have
    T+overlap entries, the first `overlap` of which are the last ones of the unroll before.
  * If an environment breaks, its current unroll is dropped. Its next unroll begins with the reset
    of the environment that replaces it.

Observations and rewards in entries are as the environment returned them. `normalisers.Normaliser`
normalises them, and clips rewards, for the network and the loss.
"""

import hashlib
import itertools
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data.tensor_io import reinterpret


class Entry(NamedTuple):
    """One entry, or many with leading axes: [...] stands for [], [B] or [T+1, B], for example."""

    action: Any  # nest of [...]: a_t, the action before o_t; int32 [...] for Discrete actions
    reward: Any  # float32 [...]: r_t, not clipped
    terminated: Any  # bool [...]: the episode ended here, and its return is complete
    truncated: Any  # bool [...]: the episode was cut here, and more rewards would have followed
    observation: Any  # nest of the environment's dtype [..., *shape]: o_t
    first: Any  # bool [...]: o_t came from a reset, which ignored a_t
    extras: Any  # nest of [...]: what the algorithm's act() returned with a_t
    # nest of bool [...] like `EnvironmentSpec.masks`: the choices that the environment allows for
    # a_{t+1}; () if it offers no masks.
    mask: Any = ()


class UnrollSpec(NamedTuple):
    """The shape of an algorithm's unrolls, which is all that actors and transport know about it."""

    length: int  # T: new entries in each unroll; only these are counted as frames
    overlap: int  # entries repeated from the unroll before: 1, or 1 + burn-in
    step: Entry  # of tf.TensorSpec: one entry without leading axes
    start: Any  # nest of tf.TensorSpec: the state of one environment before entry 0


class Unroll(NamedTuple):
    """One environment's unroll: entries [T+overlap, ...] and start [...]."""

    entries: Entry
    start: Any


class Batch(NamedTuple):
    """B unrolls, one per column: the output of a `BatchSource` and the input of an update.

    `batches` joins batches and selects columns of them.
    """

    unrolls: Entry  # [T+overlap, B, ...]
    start: Any  # nest of [B, ...]: the states before entry 0
    # int64 [B]: the unroll's key, by which priorities are reported to the source; -1 for unrolls of
    # recorded games
    key: Any
    # float32 [B]: the weight of the unroll's loss, which counts for nothing else; 0 for the padding
    # of a short batch
    weight: Any
    version: Any  # int64 [B]: the oldest policy version that chose actions in the unroll
    # bool [B]: whether the unroll counts as played. Its new entries are then counted as steps,
    # without resets. False for an unroll that was counted before and is used again.
    fresh: Any

    @property
    def played(self) -> np.ndarray:
        """The columns that count as played, bool [B]: they are fresh and no padding."""
        return np.asarray(self.fresh) & (np.asarray(self.weight) > 0)


class UnrollCodec:
    """Conversion of unrolls to bytes of a fixed length and back.

    An unroll is the bytes of all its arrays, one after the other.
    """

    def __init__(self, spec: UnrollSpec):
        self.spec = spec
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
        self.digest = structure_digest((spec.length, spec.overlap, nest))  # equal for equal layouts

    def arrays(self, rows: np.ndarray) -> Unroll:
        """Return views of the bytes of E unrolls, uint8 [E, size], as their arrays.

        The views share the memory of `rows`; entries are [E, T+overlap, ...], start is [E, ...].
        """
        parts = np.split(rows, np.cumsum(self._sizes)[:-1], axis=1)
        arrays = [
            part.view(dtype.as_numpy_dtype).reshape([len(rows), *shape])
            for part, (shape, dtype, _) in zip(parts, self._leaves, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, arrays)

    def decode(self, content: tf.Tensor) -> tuple[Entry, Any]:
        """Return B unrolls (string [B]) as entries [T+overlap, B, ...] and start [B, ...].

        For use in a graph.
        """
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
    """Return a short digest of a structure of tensor specs: equal if all shapes and dtypes are."""
    described = tf.nest.map_structure(
        lambda s: f"{list(s.shape)} {s.dtype.name}" if hasattr(s, "dtype") else s, nest_of_specs
    )
    # Replays that were saved before an entry could have the number of its level are still read.
    text = repr(described).replace(", level=()", "")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def leaf_names(nest: Any, name: str, separator: str = "_") -> list[str]:
    """Return a name for each leaf of a nest, made of its path, in `tf.nest.flatten`'s order.

    Paths that give the same name are told apart by numbers.
    """
    found: list[str] = []
    for each in _paths(nest, name, separator):
        others = (f"{each}{separator}{number}" for number in itertools.count(2))
        found.append(next(n for n in itertools.chain([each], others) if n not in found))
    return found


def _paths(nest: Any, name: str, separator: str) -> list[str]:
    if isinstance(nest, dict):
        parts = [(key, nest[key]) for key in sorted(nest)]
    elif hasattr(nest, "_fields"):
        parts = list(zip(nest._fields, nest, strict=True))
    elif isinstance(nest, list | tuple):
        parts = list(enumerate(nest))
    else:
        return [name]
    words = [(re.sub(r"\W", "_", str(key)), part) for key, part in parts]
    return [
        each for word, part in words for each in _paths(part, f"{name}{separator}{word}", separator)
    ]
