"""Frame stacking: the network sees the newest frames at once, which show what moves.

Entries hold single frames, so that each frame is sent to the learner only once. The network's state
holds the few frames before the entry that is read next. Where `first` is true, an episode starts:
the earlier frames of its stack are zeros.
"""

from typing import Any

import tensorflow as tf


class FrameStack:
    """A stack of n frames, [..., C] -> [..., n x C], with the oldest frame's channels first.

    `frame` is the spec of one frame without leading axes, or a nest of the specs of its parts, each
    of which is stacked. All frames, stacks and states below are nests of the same structure.
    """

    def __init__(self, n: int, frame: Any):
        self._n, self._frame = n, frame
        self.before = n - 1  # frames that the state holds

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the state at an episode's start: zeros for n-1 frames, [B, ..., (n-1) x C]."""

        def nothing(spec: tf.TensorSpec) -> tf.Tensor:
            *rest, channels = spec.shape.as_list()
            return tf.zeros([batch, *rest, (self._n - 1) * channels], spec.dtype)

        return tf.nest.map_structure(nothing, self._frame)

    def step(self, frame: Any, first: tf.Tensor, state: Any) -> tuple[Any, Any]:
        """Return (stack [B, ...], state) for a frame [B, *shape], first [B] and the last state."""
        before = tf.cond(tf.reduce_any(first), lambda: _restart(first, state), lambda: state)
        stack = tf.nest.map_structure(lambda old, new: tf.concat([old, new], -1), before, frame)
        return stack, self._state(stack)

    def unroll(self, frames: Any, first: tf.Tensor, state: Any) -> tuple[Any, Any]:
        """Return (stacks [T, B, ...], last state) for frames [T, B, *shape] and first [T, B].

        `state` is the one before the first of the T frames.
        """
        sources = self._sources(first)

        def stacked(frames: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
            shape = frames.shape[2:].as_list()
            before = tf.stack(tf.split(state, self._n - 1, -1))  # [n-1, B, *shape]
            known = tf.concat(
                [tf.zeros([1, *shape], frames.dtype)]
                + [tf.reshape(part, [-1, *shape]) for part in (before, frames)],
                axis=0,
            )
            earlier = [tf.gather(known, source) for source in sources]
            joined = _join([*earlier, tf.reshape(frames, [-1, *shape])])
            return tf.reshape(joined, tf.concat([tf.shape(first), joined.shape[1:]], 0))

        stacks = tf.nest.map_structure(stacked, frames, state)
        return stacks, self._state(tf.nest.map_structure(lambda stack: stack[-1], stacks))

    def _sources(self, first: tf.Tensor) -> list[tf.Tensor]:
        """Return the indices of each entry's n-1 earlier frames, the oldest first: int32 [T x B].

        They index a row of frames: a frame of zeros, then the n-1 frames before the unroll and the
        T frames of the unroll, B each. Frames of an earlier episode get the index of the zeros:
        masking frames after they were copied took twice as long as copying them.
        """
        time, batch = tf.unstack(tf.shape(first))
        newest = 1 + (self._n - 1) * batch + tf.reshape(tf.range(time * batch), [time, batch])
        sources: list[tf.Tensor] = []
        same = tf.ones_like(first)
        for back in range(1, self._n):
            # A frame belongs to entry t's episode if no entry after it, up to t, is a first one.
            since = tf.pad(first[: tf.maximum(time - back + 1, 0)], [[back - 1, 0], [0, 0]])
            same &= ~since[:time]
            sources.insert(0, tf.reshape(tf.where(same, newest - back * batch, 0), [-1]))
        return sources

    def _state(self, stack: Any) -> Any:
        """Return the next state: a stack [B, ...] without its oldest frame."""
        return tf.nest.map_structure(
            lambda stack, frame: stack[..., frame.shape[-1] :], stack, self._frame
        )


def _restart(first: tf.Tensor, state: Any) -> Any:
    """Return the state with zeros where `first` is true."""

    def restarted(part: tf.Tensor) -> tf.Tensor:
        axes = [-1] + [1] * (part.shape.rank - 1)
        return tf.where(tf.reshape(first, axes), tf.zeros([], part.dtype), part)

    return tf.nest.map_structure(restarted, state)


def _join(layers: list[tf.Tensor]) -> tf.Tensor:
    """Join n frames [N, ..., C], the oldest first, to [N, ..., n x C]."""
    *_, channels = shape = layers[0].shape.as_list()
    if channels > 4:
        return tf.concat(layers, -1)
    # With few channels, transposing [n, all others, C] is much faster than copying short runs.
    n = len(layers)
    flat = tf.transpose(tf.reshape(tf.stack(layers), [n, -1, channels]), [1, 0, 2])
    return tf.reshape(flat, [-1, *shape[1:-1], n * channels])
