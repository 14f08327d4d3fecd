"""The newest frames at once, where one alone does not show what moves. Network puts it first.

Entries carry single frames, so that a frame crosses the wire once; the state holds the few before
the entry that is read next. Where `first` is true nothing was before: earlier frames are zeros.
"""

import tensorflow as tf


class FrameStack:
    """[..., height, width, C] -> [..., height, width, n x C], the oldest frame's channels first."""

    def __init__(self, n: int, observation: tf.TensorSpec):
        self._n = n
        self._shape = observation.shape.as_list()
        self._dtype = observation.dtype
        self.shape = [*self._shape[:-1], n * self._shape[-1]]  # of what it gives

    def initial_state(self, batch: int | tf.Tensor) -> tf.Tensor:
        """No frames: [B, n-1, *shape], oldest first."""
        return tf.zeros([batch, self._n - 1, *self._shape], self._dtype)

    def step(
        self, frame: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(stack [B, ...], state) from a frame [B, *shape], first [B] and the frames before."""
        stack, state = self.unroll(frame[tf.newaxis], first[tf.newaxis], state)
        return stack[0], state

    def unroll(
        self, frames: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(stacks [T, B, ...], state) from frames [T, B, *shape], first [T, B], frames before."""
        n, time = self._n, tf.shape(first)[0]
        before = tf.transpose(state, [1, 0, *range(2, 2 + len(self._shape))])
        known = tf.concat([before, frames], 0)  # [n-1+T, B, *shape]
        layers, same = [frames], tf.ones_like(first)
        for back in range(1, n):
            # Of the episode that entry t is in, if none of the entries since was its first.
            since = tf.pad(first[: tf.maximum(time - back + 1, 0)], [[back - 1, 0], [0, 0]])
            same &= ~since[:time]
            shown = tf.reshape(same, [-1, tf.shape(first)[1], *[1] * len(self._shape)])
            layer = known[n - 1 - back : n - 1 - back + time]
            layers.append(tf.where(shown, layer, tf.zeros([], self._dtype)))
        # What entry T-1 saw, but for its oldest frame, is before entry T.
        last = [layer[-1] for layer in layers[-2::-1]]
        if self._shape[-1] > 4:
            return tf.concat(layers[::-1], -1), tf.stack(last, 1)
        # Few channels: a transpose of [n, all else, C] is much faster than copying runs so short.
        flat = tf.reshape(tf.stack(layers[::-1]), [n, -1, self._shape[-1]])
        stacked = tf.reshape(tf.transpose(flat, [1, 0, 2]), [time, -1, *self.shape])
        return stacked, tf.stack(last, 1)
