"""A GRU that can restart inside an unroll: a quarter less to compute than an LSTM of as many units.

It is the form of cuDNN, PyTorch and Keras, where the reset gate scales what the state has become
after its product with the recurrent weights. So `unroll` multiplies the inputs of all entries by
their weights at once, and its loop over time contains one product for the three gates.
"""

import sonnet as snt
import tensorflow as tf

from nets.lstm import entries_of, restart


class GRU(snt.Module):
    """A recurrent core with H units, whose state is float32 [B, H]; zeros at an episode's start."""

    def __init__(self, size: int):
        super().__init__(name="gru")
        self._size = size
        # Blocks of H columns: reset gate, update gate, candidate.
        self.read = snt.Linear(3 * size, b_init=_remember_at_first, name="read")
        self.recall = snt.Linear(3 * size, name="recall")

    def initial_state(self, batch: int | tf.Tensor) -> tf.Tensor:
        """Return the state at an episode's start."""
        return tf.zeros([batch, self._size])

    def step(
        self, inputs: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (features [B, H], state) after reading inputs [B, I]; `first` is bool [B]."""
        before = restart(first[:, None], state)
        hidden = _advance(self.read(inputs), self.recall(before), before)
        return hidden, hidden

    def unroll(
        self, inputs: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (features [T, B, H], last state) for inputs [T, B, I] and `first`, bool [T, B]."""
        length = tf.shape(inputs)[0]
        gates = entries_of(snt.BatchApply(self.read)(inputs))
        restarts = entries_of(first[:, :, None])
        # Read outside the loop, so that their gradients are summed, not the variables' copies.
        w, b = tf.convert_to_tensor(self.recall.w), tf.convert_to_tensor(self.recall.b)

        def forward(
            t: tf.Tensor, hidden: tf.Tensor, features: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
            before = restart(restarts.read(t), hidden)
            hidden = _advance(gates.read(t), before @ w + b, before)
            return t + 1, hidden, features.write(t, hidden)

        _, last, features = tf.while_loop(
            lambda t, *_: t < length,
            forward,
            (0, state, tf.TensorArray(tf.float32, length, element_shape=state.shape)),
            maximum_iterations=length,
        )
        return features.stack(), last


def _advance(read: tf.Tensor, recalled: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Return the state [B, H] after `before`, of the inputs' and the state's shares [B, 3H]."""
    size = before.shape[-1]
    opened = tf.sigmoid(read[:, : 2 * size] + recalled[:, : 2 * size])
    reset, update = tf.split(opened, 2, axis=-1)
    candidate = tf.tanh(read[:, 2 * size :] + reset * recalled[:, 2 * size :])
    return update * before + (1.0 - update) * candidate


def _remember_at_first(shape: list[int], dtype: tf.DType) -> tf.Tensor:
    """Return initial biases: 1 for the update gate, so that gradients reach far back at first."""
    size = shape[0] // 3
    return tf.concat([tf.zeros(size, dtype), tf.ones(size, dtype), tf.zeros(size, dtype)], 0)
