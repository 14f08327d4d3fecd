"""The newest frames at once, where one alone does not show what moves. Network puts it first.

Entries carry single frames, so that a frame crosses the wire once; the state holds the few before
the entry that is read next. Where `first` is true nothing was before: earlier frames are zeros.
"""

import tensorflow as tf


class FrameStack:
    """[..., height, width, C] -> [..., height, width, n x C], the oldest frame's channels first."""

    def __init__(self, n: int, observation: tf.TensorSpec):
        self._n, self._dtype = n, observation.dtype
        *rest, self._channels = observation.shape.as_list()
        self.shape = [*rest, n * self._channels]  # of what it gives

    def initial_state(self, batch: int | tf.Tensor) -> tf.Tensor:
        """No frames: what a stack is but for its newest, [B, ..., (n-1) x C]."""
        return tf.zeros([batch, *self.shape[:-1], self.shape[-1] - self._channels], self._dtype)

    def step(
        self, frame: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(stack [B, ...], state) from a frame [B, *shape], first [B] and the frames before."""
        (before,) = self._unless(first, [(~first, state)])
        stack = tf.concat([before, frame], -1)
        return stack, stack[..., self._channels :]

    def unroll(
        self, frames: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(stacks [T, B, ...], state) from frames [T, B, *shape], first [T, B], frames before."""
        time = tf.shape(first)[0]
        before = tf.stack(tf.split(state, self._n - 1, -1))
        known = tf.concat([before, frames], 0)  # [n-1+T, B, *shape]
        layers: list[tuple[tf.Tensor, tf.Tensor]] = []
        same = tf.ones_like(first)
        for back in range(1, self._n):
            # Of the episode that entry t is in, if none of the entries since was its first.
            since = tf.pad(first[: tf.maximum(time - back + 1, 0)], [[back - 1, 0], [0, 0]])
            same &= ~since[:time]
            begin = self._n - 1 - back
            layers.insert(0, (same, known[begin : begin + time]))
        stacks = self._join([*self._unless(first, layers), frames])
        return stacks, stacks[-1, ..., self._channels :]

    def _unless(
        self, first: tf.Tensor, layers: list[tuple[tf.Tensor, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Each layer where it is of the same episode, else zeros.

        Most often no episode begins, and then there is nothing to do: masking costs more than all
        else here.
        """

        def masked() -> list[tf.Tensor]:
            axes = [1] * len(self.shape)
            return [
                tf.where(tf.reshape(same, tf.concat([tf.shape(same), axes], 0)), layer, 0)
                for same, layer in layers
            ]

        return tf.cond(tf.reduce_any(first), masked, lambda: [layer for _, layer in layers])

    def _join(self, layers: list[tf.Tensor]) -> tf.Tensor:
        """n of [T, B, *shape], oldest first, as [T, B, ..., n x C]."""
        if self._channels > 4:
            return tf.concat(layers, -1)
        # Few channels: a transpose of [n, all else, C] is much faster than copying runs so short.
        flat = tf.reshape(tf.stack(layers), [self._n, -1, self._channels])
        sizes = tf.concat([tf.shape(layers[-1])[:2], self.shape], 0)
        return tf.reshape(tf.transpose(flat, [1, 0, 2]), sizes)
