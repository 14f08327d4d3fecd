"""MLPAgent: two hidden layers, for observations that are vectors."""

import sonnet as snt
import tensorflow as tf


class MLPAgent(snt.Module):
    """[N, any...] float32 -> features [N, 64]."""

    def __init__(self) -> None:
        super().__init__(name="mlp_agent")
        self._torso = snt.nets.MLP([64, 64], activation=tf.nn.tanh, activate_final=True)

    def torso(self, observation: tf.Tensor) -> tf.Tensor:
        """Features of each observation by itself."""
        return self._torso(snt.flatten(observation))
