"""A level and an algorithm that use TensorFlow at unusual places.

--level_name=tests.helpers.computing:Computing-v0 computes while its module is imported,
--algorithm=tests.helpers.computing in Python code that TensorFlow calls.
"""

import gymnasium
import numpy as np
import tensorflow as tf

from impala_mm.algorithms.impala.algorithm import Impala

_SEEN = tf.constant([1.0, 2.0]).numpy()


class Computing(gymnasium.Env):
    """An environment whose episodes last ten steps."""

    observation_space = gymnasium.spaces.Box(0, 2, [2], np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return _SEEN, {}

    def step(self, action):
        self._steps += 1
        return _SEEN, float(action), self._steps == 10, False, {}


gymnasium.register("Computing-v0", Computing)


def make(config, environment):
    algorithm = Impala(config, environment)
    algorithm.initial_state = tf.function(algorithm.initial_state, autograph=False)
    algorithm.update = _Update(algorithm)
    return algorithm


class _Update:
    """The algorithm's update with priorities that TensorFlow computes in Python code."""

    def __init__(self, algorithm):
        self._update = algorithm.update
        self._doubled = tf.function(lambda x: 2 * tf.sort(x), autograph=False)

    def __call__(self, batch, context, exchange):
        metrics, priorities = self._update(batch, context, exchange)
        asked = tf.numpy_function(self._ask, [priorities], tf.float32)
        return metrics, tf.ensure_shape(asked, priorities.shape)

    def _ask(self, priorities):
        return self._doubled(tf.constant(priorities)).numpy()
