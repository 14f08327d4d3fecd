"""The newest frames at once, where one alone does not show what moves. Network puts it first.

Entries carry single frames, so that a frame crosses the wire once; the state holds the few before
the entry that is read next. Where `first` is true nothing was before: earlier frames are zeros.
"""

from typing import Any

import tensorflow as tf


class FrameStack:
    """[..., C] -> [..., n x C], the oldest frame's channels first; of each part of a frame.

    `frame`: a spec of one frame without leading axes, or a nest of specs of its parts. All frames,
    stacks and states here are such nests.
    """

    def __init__(self, n: int, frame: Any):
        self._n, self._frame = n, frame

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """No frames: what a stack is but for its newest, [B, ..., (n-1) x C]."""

        def nothing(spec: tf.TensorSpec) -> tf.Tensor:
            *rest, channels = spec.shape.as_list()
            return tf.zeros([batch, *rest, (self._n - 1) * channels], spec.dtype)

        return tf.nest.map_structure(nothing, self._frame)

    def step(self, frame: Any, first: tf.Tensor, state: Any) -> tuple[Any, Any]:
        """(stack [B, ...], state) from a frame [B, *shape], first [B] and the frames before."""
        before = tf.cond(tf.reduce_any(first), lambda: _restart(first, state), lambda: state)
        stack = tf.nest.map_structure(lambda old, new: tf.concat([old, new], -1), before, frame)
        return stack, self._state(stack)

    def unroll(self, frames: Any, first: tf.Tensor, state: Any) -> tuple[Any, Any]:
        """(stacks [T, B, ...], state) from frames [T, B, *shape], first [T, B], frames before."""
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
        """Where the earlier frames of each entry are, the oldest first: n-1 of int32 [T x B].

        Counted in one row of a frame of zeros, the n-1 before the unroll, and the T of it, B each.
        Zeros come by their own number: to mask what was copied took twice as long as to copy it.
        """
        time, batch = tf.unstack(tf.shape(first))
        newest = 1 + (self._n - 1) * batch + tf.reshape(tf.range(time * batch), [time, batch])
        sources: list[tf.Tensor] = []
        same = tf.ones_like(first)
        for back in range(1, self._n):
            # Of the episode that entry t is in, if none of the entries since was its first.
            since = tf.pad(first[: tf.maximum(time - back + 1, 0)], [[back - 1, 0], [0, 0]])
            same &= ~since[:time]
            sources.insert(0, tf.reshape(tf.where(same, newest - back * batch, 0), [-1]))
        return sources

    def _state(self, stack: Any) -> Any:
        """A stack [B, ...] without its oldest frame."""
        return tf.nest.map_structure(
            lambda stack, frame: stack[..., frame.shape[-1] :], stack, self._frame
        )


def _restart(first: tf.Tensor, state: Any) -> Any:
    """Zeros where `first` is true."""

    def restarted(part: tf.Tensor) -> tf.Tensor:
        axes = [-1] + [1] * (part.shape.rank - 1)
        return tf.where(tf.reshape(first, axes), tf.zeros([], part.dtype), part)

    return tf.nest.map_structure(restarted, state)


def _join(layers: list[tf.Tensor]) -> tf.Tensor:
    """n of [N, ..., C], oldest first, as [N, ..., n x C]."""
    *_, channels = shape = layers[0].shape.as_list()
    if channels > 4:
        return tf.concat(layers, -1)
    # Few channels: a transpose of [n, all else, C] is much faster than copying runs so short.
    n = len(layers)
    flat = tf.transpose(tf.reshape(tf.stack(layers), [n, -1, channels]), [1, 0, 2])
    return tf.reshape(flat, [-1, *shape[1:-1], n * channels])
