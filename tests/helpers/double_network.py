"""A network in float64, for updates that must be exact to 1e-9."""

import sonnet as snt
import tensorflow as tf


class Double(snt.Module):
    """A network in float64: a layer of an observation."""

    num_features = 8

    def __init__(self):
        super().__init__(name="double")
        self._layer = snt.Linear(8)
        self._layer(tf.zeros([1, 4], tf.float64))

    def initial_state(self, batch):
        return ()

    def earlier_images(self, state):
        return ()

    def unroll(self, observation, reward, action, first, state):
        layer = snt.BatchApply(self._layer)
        return tf.tanh(layer(tf.cast(observation, tf.float64))), state
