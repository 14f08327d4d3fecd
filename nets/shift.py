"""Images shifted by some pixels, by which DrQ augments what is replayed (arXiv 2004.13649).

All images of an unroll are shifted alike, also the frames before it that a stack holds, so that
only what moves in the game moves in the stack.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


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

    each = tf.map_fn(cut, tf.range(tf.shape(offsets)[0]), fn_output_signature=images.dtype)
    return tf.ensure_shape(tf.transpose(each, [1, 0, 2, 3, 4]), images.shape)


def shift_frames(
    frames: Any, count: int, restore: Callable[[Any], tf.Tensor], offsets: tf.Tensor, most: int
) -> tf.Tensor:
    """Return the `count` frames that a stack's state holds, shifted, [count x B, H, W, C].

    `frames` are [B, ..., count x C], of which `restore` makes images [B, H, W, C].
    """
    each = tf.concat(tf.split(frames, count, -1), 0)  # [count x B, ...]
    images = restore(each)
    shape = images.shape[1:]
    moved = shift(tf.reshape(images, [count, -1, *shape]), offsets, most)
    return tf.reshape(moved, [-1, *shape])


def _pad(images: tf.Tensor, axis: int, most: int) -> tf.Tensor:
    """Return images with `most` copies of their first and their last row, along an axis."""
    size = images.shape[axis]
    first, last = (tf.gather(images, [i], axis=axis) for i in (0, size - 1))
    return tf.concat([first] * most + [images] + [last] * most, axis)
