"""A policy as TD3 has it, which never reads --box_policy: --algorithm=tests.helpers.td3_like.

It only teaches: its `update` does nothing.
"""

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, PolicyOutput, entry_spec
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables

_LOG_DEVIATION = -2.0  # of the distribution that its students imitate


def make(config, environment):
    return TD3Like(config, environment)


class TD3Like(Algorithm):
    def __init__(self, config, environment):
        (box,) = environment.actions.leaves
        self._layer = snt.Linear(box.shape[0])
        self._layer(tf.zeros([1, *environment.observation.shape]))
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=())
        actor = list(self._layer.trainable_variables)
        self.variables = Variables(actor, [], acting=actor)

    def initial_state(self, batch):
        return ()

    def act(self, entry, core_state, exploration):
        return tf.tanh(self._layer(entry.observation)), core_state, ()

    def judge(self, entry, core_state):
        mean = snt.BatchApply(self._layer, entry.reward.shape.rank)(entry.observation)
        parameters = tf.concat([mean, tf.fill(tf.shape(mean), _LOG_DEVIATION)], -1)
        return PolicyOutput(parameters, tf.zeros_like(entry.reward), parameters)

    judge_unroll = judge

    def update(self, batch, context, exchange):
        return {}, tf.zeros_like(batch.unrolls.reward[0])
