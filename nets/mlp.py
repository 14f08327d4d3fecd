"""MLP: fully connected layers, for observations that are vectors."""

import sonnet as snt
import tensorflow as tf

from nets.style import ACTIVATIONS, DEFAULT, Style


class MLP(snt.Module):
    """A torso [N, ...] -> [N, D] of D units in the last layer; it can read any shape, flattened."""

    def __init__(self, style: Style = DEFAULT):
        super().__init__(name="mlp")
        scale = style.mlp_init_scale
        start = snt.initializers.Orthogonal(scale) if scale else None
        self._activation = ACTIVATIONS[style.activation]
        self._layers = snt.nets.MLP(
            style.mlp_sizes, w_init=start, activation=self._activation, activate_final=True
        )
        self._norms = [snt.LayerNorm(-1, True, True) for _ in style.mlp_sizes if style.layer_norm]

    def unsuitable(self, shape: tuple[int, ...]) -> None:
        """Return None: an MLP can read observations of any shape."""

    def arrange(self, observation: tf.Tensor) -> tf.Tensor:
        """Return the observations as they are."""
        return observation

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """Return the features [N, D] of observations [N, ...]."""
        flat = tf.reshape(observation, [-1, observation.shape[1:].num_elements()])
        if not self._norms:
            return self._layers(flat)
        for layer, norm in zip(self._layers.submodules, self._norms, strict=True):
            flat = self._activation(norm(layer(flat)))
        return flat
