"""SAC's networks in float64, with a memory and without one."""

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.sac.networks import ChoiceCriticNetwork
from tests.helpers.double_network import DoubleRecurrent


class Linear(snt.Module):
    """A linear layer in float64."""

    def __init__(self, inputs, outputs, name):
        super().__init__(name=name)
        self.w = tf.Variable(tf.zeros([inputs, outputs], tf.float64), name="w")

    def __call__(self, x):
        return tf.tensordot(tf.cast(x, tf.float64), self.w, 1)


class DoublePolicy(snt.Module):
    """A policy's network in float64."""

    def __init__(self, config, environment, mean=None):
        super().__init__(name="policy")
        self.distribution = action_policies.choose(
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
    """Two Q-networks in float64: Q(o, a) = tanh(w (o, a, a^2))."""

    def __init__(self, config, environment, mean=None):
        super().__init__(name="critic")
        self.layer = Linear(5, 2, "layer")

    def initial_state(self, batch):
        return ()

    def unroll(self, entries, state):
        return entries.observation

    def values(self, features, actions):
        actions = tf.cast(actions, tf.float64)
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

    def __init__(self, config, environment, mean=None):
        super().__init__(config, environment)
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
