"""MLP: fully connected layers, for observations that are vectors."""

from typing import Any

import sonnet as snt
import tensorflow as tf

from nets.noisy import NoisyLinear
from nets.style import ACTIVATIONS, DEFAULT, Style


class MLP(snt.Module):
    """A torso [N, ...] -> [N, D] of D units in the last layer; it can read any shape, flattened."""

    def __init__(self, style: Style = DEFAULT):
        super().__init__(name="mlp")
        scale = style.mlp_init_scale
        start = snt.initializers.Orthogonal(scale) if scale else None
        self._activation = ACTIVATIONS[style.activation]
        self._layers: Any = snt.nets.MLP(
            style.mlp_sizes, w_init=start, activation=self._activation, activate_final=True
        )
        if noise := style.noise_scale:
            self._layers = snt.Sequential([NoisyLinear(size, noise) for size in style.mlp_sizes])
        self._norms = [snt.LayerNorm(-1, True, True) for _ in style.mlp_sizes if style.layer_norm]

    def unsuitable(self, shape: tuple[int, ...]) -> None:
        """Return None: an MLP can read observations of any shape."""

    def arrange(self, observation: tf.Tensor) -> tf.Tensor:
        """Return the observations as they are."""
        return observation

    def restore(self, arranged: tf.Tensor) -> tf.Tensor:
        """Return the observations as they are."""
        return arranged

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """Return the features [N, D] of observations [N, ...]."""
        flat = tf.reshape(observation, [-1, observation.shape[1:].num_elements()])
        layers = self._layers.submodules
        for layer, norm in zip(layers, self._norms or [tf.identity] * len(layers), strict=True):
            flat = self._activation(norm(layer(flat)))
        return flat
