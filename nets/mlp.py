"""MLP: two hidden layers, for observations that are vectors."""

import sonnet as snt
import tensorflow as tf


class MLP(snt.Module):
    """[N, any...] -> [N, 64]. It flattens what it reads, so it fits every observation."""

    def __init__(self) -> None:
        super().__init__(name="mlp")
        self._layers = snt.nets.MLP([64, 64], activation=tf.tanh, activate_final=True)

    def unsuitable(self, shape: tuple[int, ...]) -> None:
        """Never."""

    def arrange(self, observation: tf.Tensor) -> tf.Tensor:
        """As it is."""
        return observation

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """Features of each observation by itself."""
        return self._layers(tf.reshape(observation, [-1, observation.shape[1:].num_elements()]))
