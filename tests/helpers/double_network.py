"""Networks in float64, for updates that must be exact to 1e-9; SAC's begin with `Linear`."""

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.q_policy.networks import ChoiceCriticNetwork
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


class Linear(snt.Module):
    """A linear layer in float64."""

    def __init__(self, inputs, outputs, name):
        super().__init__(name=name)
        self.w = tf.Variable(tf.zeros([inputs, outputs], tf.float64), name="w")

    def __call__(self, x):
        return tf.tensordot(tf.cast(x, tf.float64), self.w, 1)


class DoublePolicy(snt.Module):
    """A policy's network in float64."""

    def __init__(self, config, environment, mean=None, distribution=None):
        super().__init__(name="policy")
        self.distribution = distribution or action_policies.choose(
            environment.actions, config.box_policy, config.box_deviation
        )
        self.layer = Linear(3, self.distribution.num_parameters, "layer")

    def initial_state(self, batch):
        return ()

    def earlier_images(self, state):
        return ()

    def parameters(self, entries, state):
        return self.layer(entries.observation)

    def unroll(self, entries, state):
        return self.distribution.make(self.parameters(entries, state), entries.mask)


class DoubleCritic(snt.Module):
    """Q-networks in float64: Q(o, a) = tanh(w (o, a, a^2))."""

    num_features = 3

    def __init__(self, config, environment, mean=None):
        super().__init__(name="critic")
        numbers = environment.actions.num_features
        self.layer = Linear(3 + 2 * numbers, config.num_critics, "layer")

    def initial_state(self, batch):
        return ()

    def unroll(self, entries, state):
        return entries.observation

    def values(self, features, actions):
        shape = tf.concat([tf.shape(features)[:-1], [-1]], 0)
        parts = [tf.reshape(x, shape) for x in tf.nest.flatten(actions)]
        actions = tf.cast(tf.concat(parts, -1), tf.float64)
        both = tf.concat([tf.cast(features, tf.float64), actions, actions**2], -1)
        return tf.stack(tf.unstack(tf.tanh(self.layer(both)), axis=-1))


class DoubleChoiceCritic(ChoiceCriticNetwork):
    """Two Q-networks of choices in float64: Q(o) = tanh(w o)."""

    def __init__(self, config, environment, mean=None):
        snt.Module.__init__(self, name="critic")
        self._actions = environment.actions
        self.layer = Linear(3, 2 * environment.actions.num_features, "layer")

    def initial_state(self, batch):
        return ()

    def unroll(self, entries, state):
        return entries.observation

    def all_values(self, features):
        return tf.stack(tf.split(tf.tanh(self.layer(features)), 2, axis=-1))


class _Remembering:
    """A network whose `body` has a memory."""

    def initial_state(self, batch):
        return self.body.initial_state(batch)

    def features(self, entries, state):
        e = entries
        return self.body.unroll(e.observation, e.reward, e.action, e.first, state)[0]


class RecurrentPolicy(_Remembering, DoublePolicy):
    """The same policy with a memory."""

    def __init__(self, config, environment, mean=None, distribution=None):
        super().__init__(config, environment, mean, distribution)
        self.body, self.layer = DoubleRecurrent(3), Linear(8, 2, "layer")

    def parameters(self, entries, state):
        return self.layer(self.features(entries, state))


class RecurrentCritic(_Remembering, DoubleCritic):
    """The same Q-networks with a memory."""

    def __init__(self, config, environment, mean=None):
        super().__init__(config, environment)
        self.body, self.layer = DoubleRecurrent(3), Linear(10, 2, "layer")

    def unroll(self, entries, state):
        return self.features(entries, state)
