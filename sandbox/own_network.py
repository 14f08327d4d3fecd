"""An example of a user's own networks: two MLPs, one of which reads small numbers as large ones.

`own_names.py` gives them their names; sandbox/networks.md explains both.
"""

import tensorflow as tf

import nets


class Twin(nets.Torso):
    """Two MLPs side by side: vectors [N, ...] -> features [N, D]."""

    def __init__(self, style: nets.Style):
        super().__init__(name="twin")
        self._plain, self._enlarged = nets.MLP(style), nets.MLP(style)

    def unsuitable(self, shape: tuple[int, ...]) -> str | None:
        """Return why it cannot read observations of this shape, or None if it can."""
        return None if len(shape) == 1 else "it reads vectors"

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """Return the features [N, D] of observations [N, ...]."""
        enlarged = tf.tanh(10.0 * observation)
        return tf.concat([self._plain(observation), self._enlarged(enlarged)], -1)


def twin(style: nets.Style) -> tuple[Twin, None]:
    """Return the torso, and no core."""
    return Twin(style), None


def twin_lstm(style: nets.Style) -> tuple[Twin, nets.LSTM]:
    """Return the torso, and a core that remembers the episode."""
    return Twin(style), nets.LSTM(style.lstm_size or 64)
