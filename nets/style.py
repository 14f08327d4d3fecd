"""The properties of networks that may be chosen; most are flags of the same name."""

from typing import NamedTuple

import tensorflow as tf

ACTIVATIONS = {
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "swish": tf.nn.swish,
}


class Style(NamedTuple):
    """The sizes and layers of a network's MLPs and LSTM; convolutions have their own."""

    mlp_sizes: tuple[int, ...] = (64, 64)  # units of each layer, the first one first
    activation: str = "tanh"  # after each layer of an MLP: one of ACTIVATIONS
    layer_norm: bool = False  # before each activation of an MLP
    # Scale of an MLP's initial weights, which are then orthogonal. 0: random numbers of the
    # deviation 1 / sqrt(inputs), truncated at two deviations.
    mlp_init_scale: float = 0.0
    lstm_size: int = 0  # units; 0: the network's own number
    # Initial noise of fully connected layers (see `noisy`); 0: they are not noisy.
    noise_scale: float = 0.0


DEFAULT = Style()
