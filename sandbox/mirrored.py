"""DQN on mirrored boards: `--preset=connect-four-dqn --algorithm=sandbox.mirrored`.

Half of what it learns from is turned from left to right.
"""

import tensorflow as tf

from impala_mm.algorithms.feature import Feature, Features
from impala_mm.algorithms.q_learning.algorithm import DQN


class Mirror(Feature):
    """Turns each column of a batch with probability 1/2: observations, actions and masks."""

    def prepare(self, batch, reading):
        """Return the batch, whose observations are [T+1, B, height, width, channels]."""
        entries = batch.unrolls
        turned = tf.random.stateless_uniform([tf.shape(batch.weight)[0]], reading.seed(77)) < 0.5

        def turn(x, axis):
            chosen = tf.reshape(turned, [1, -1] + [1] * (x.shape.rank - 2))
            return tf.where(chosen, tf.reverse(x, [axis]), x)

        last = entries.observation.shape[3] - 1
        entries = entries._replace(
            observation=turn(entries.observation, 3),
            action=tf.where(turned, last - entries.action, entries.action),
            mask=tf.nest.map_structure(lambda mask: turn(mask, 2), entries.mask),
        )
        return batch._replace(unrolls=entries), ()


def make(config, environment, setup):
    """Return DQN with mirrored boards."""
    features = Features([*setup.features, Mirror()])
    return DQN(config, environment, setup._replace(features=features))
