"""Frame stacking: the network sees the newest frames at once, which show what moves.

Entries hold single frames, so that each frame is sent to the learner only once. The network's state
holds the few frames before the entry that is read next. Where `first` is true, an episode starts:
the earlier frames of its stack are zeros.

`shift` moves images by some pixels, by which DrQ augments what is replayed (arXiv 2004.13649). All
images of an unroll are shifted alike, also the frames before it that a stack holds, so that only
what moves in the game moves in the stack.
"""

from collections.abc import Callable
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
            row = tf.concat(
                [tf.zeros([1, *shape], frames.dtype)]
                + [tf.reshape(part, [-1, *shape]) for part in (before, frames)],
                axis=0,
            )
            earlier = [tf.gather(row, source) for source in sources]
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


def shift(images: tf.Tensor, offsets: tf.Tensor, most: int) -> tf.Tensor:
    """Return images [T, B, H, W, C], those of column b moved by offsets[b], int32 [B, 2].

    An offset is the number of pixels down and to the right, from -most to most. Where a part of a
    picture is missing, its border is repeated.
    """
    padded = _pad(_pad(images, 2, most), 3, most)
    time, _, *size = tf.unstack(tf.shape(images))

    def cut(column: tf.Tensor) -> tf.Tensor:
        down, right = tf.unstack(most - offsets[column])
        begin = tf.stack([0, column, down, right, 0])
        return tf.slice(padded, begin, tf.stack([time, 1, *size]))[:, 0]

    columns = tf.map_fn(cut, tf.range(tf.shape(offsets)[0]), fn_output_signature=images.dtype)
    return tf.ensure_shape(tf.transpose(columns, [1, 0, 2, 3, 4]), images.shape)


def shift_frames(
    frames: Any, count: int, restore: Callable[[Any], tf.Tensor], offsets: tf.Tensor, most: int
) -> tf.Tensor:
    """Return the `count` frames that a stack's state holds, shifted, [count x B, H, W, C].

    `frames` are [B, ..., count x C], of which `restore` makes images [B, H, W, C].
    """
    images = restore(tf.concat(tf.split(frames, count, -1), 0))  # [count x B, ...]
    shape = images.shape[1:]
    moved = shift(tf.reshape(images, [count, -1, *shape]), offsets, most)
    return tf.reshape(moved, [-1, *shape])


def _pad(images: tf.Tensor, axis: int, most: int) -> tf.Tensor:
    """Return images with `most` copies of their first and their last row, along an axis."""
    size = images.shape[axis]
    first, last = (tf.gather(images, [i], axis=axis) for i in (0, size - 1))
    return tf.concat([first] * most + [images] + [last] * most, axis)
