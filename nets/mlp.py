"""MLP: two hidden layers, for observations that are vectors."""

import sonnet as snt
import tensorflow as tf


class MLP(snt.Module):
    """A torso [N, ...] -> [N, 64]; it flattens observations, so it can read any shape."""

    def __init__(self) -> None:
        super().__init__(name="mlp")
        self._layers = snt.nets.MLP([64, 64], activation=tf.tanh, activate_final=True)

    def unsuitable(self, shape: tuple[int, ...]) -> None:
        """Return None: an MLP can read observations of any shape."""

    def arrange(self, observation: tf.Tensor) -> tf.Tensor:
        """Return the observations as they are."""
        return observation

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """Return the features [N, 64] of observations [N, ...]."""
        return self._layers(tf.reshape(observation, [-1, observation.shape[1:].num_elements()]))
