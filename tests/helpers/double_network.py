"""A network in float64, for updates that must be exact to 1e-9."""

import numpy as np
import sonnet as snt
import tensorflow as tf

from nets.frame_stack import shift


class Double(snt.Module):
    """A network in float64: a layer of an observation."""

    num_features = 8

    def __init__(self, size=4):
        super().__init__(name="double")
        self._layer = snt.Linear(8)
        self._layer(tf.zeros([1, size], tf.float64))

    def initial_state(self, batch):
        return ()

    def earlier_images(self, state):
        return ()

    def unroll(self, observation, reward, action, first, state):
        layer = snt.BatchApply(self._layer)
        return tf.tanh(layer(tf.cast(observation, tf.float64))), state


class DoubleOfImages(Double):
    """The same of an image, which can be shifted."""

    def __init__(self, shape):
        super().__init__(np.prod(shape))

    def unroll(self, observation, reward, action, first, state):
        flat = tf.reshape(observation, [*observation.shape[:2], -1])
        return super().unroll(flat, reward, action, first, state)

    def shift_images(self, observation, state, offsets, most):
        return shift(observation, offsets, most), state


class DoubleRecurrent(Double):
    """The same with a memory: h' = tanh(tanh(layer of the observation) + U h)."""

    def __init__(self, size=4):
        super().__init__(size)
        self._recall = snt.Linear(8, with_bias=False)
        self._recall(tf.zeros([1, 8], tf.float64))

    def initial_state(self, batch):
        return tf.zeros([batch, 8], tf.float64)

    def step(self, observation, reward, action, first, state):
        one = tf.nest.map_structure(lambda x: x[None], (observation, reward, action, first))
        features, state = self.unroll(*one, state)
        return features[0], state

    def unroll(self, observation, reward, action, first, state):
        inputs, _ = super().unroll(observation, reward, action, first, ())
        features = []
        for now, restart in zip(tf.unstack(inputs), tf.unstack(first), strict=True):
            before = tf.where(restart[:, None], tf.zeros_like(state), state)
            state = tf.tanh(now + self._recall(before))
            features.append(state)
        return tf.stack(features), state
