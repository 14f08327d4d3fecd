"""The observations that teachers from elsewhere read: stacks of frames where the student's are.

Entries hold single frames, which `nets.frame_stack` stacks to [..., n x C] with the oldest first.
A teacher that is a trained policy of ours has a network that stacks them itself.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from impala_mm.data.trajectory import Entry
from nets.frame_stack import FrameStack


class Frames:
    """The newest frames of each episode; 1: observations are read as they are."""

    def __init__(self, observation: Any, count: int):
        """Stack `count` observations, which have these specs."""
        self._stack = FrameStack(count, observation) if count > 1 else None
        self.specs = observation  # of what is read, without leading axes
        if count > 1:
            self.specs = tf.nest.map_structure(
                lambda x: tf.TensorSpec([*x.shape[:-1], count * x.shape[-1]], x.dtype), observation
            )

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the memory at the start of `batch` episodes: earlier frames, which are zeros."""
        return self._stack.initial_state(batch) if self._stack else ()

    def step(self, entry: Entry, state: Any) -> tuple[Any, Any]:
        """Return (what is read [B, ...], memory) after entries [B, ...]."""
        if not self._stack:
            return entry.observation, state
        return self._stack.step(entry.observation, entry.first, state)

    def unroll(self, entries: Entry) -> Any:
        """Return what is read [T+1, B, ...] for entries [T+1, B, ...], from an empty memory."""
        if not self._stack:
            return entries.observation
        state = self.initial_state(tf.shape(entries.first)[1])
        return self._stack.unroll(entries.observation, entries.first, state)[0]


def ask_at_once(ask: Callable[[Any], tf.Tensor], read: Any, num_parameters: int) -> tf.Tensor:
    """Return the parameters [T, B, P] for a nest [T, B, ...], by a function of [N, ...]."""
    sizes = tf.shape(tf.nest.flatten(read)[0])
    flat = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), read)
    return tf.reshape(ask(flat), [sizes[0], sizes[1], num_parameters])
