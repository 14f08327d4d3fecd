"""PPO with curiosity, an example of a feature, which sandbox/own_algorithm.md explains."""

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.feature import Added, Feature, Features
from impala_mm.algorithms.policy_gradient.variants import PPO


class Curiosity(Feature):
    """A reward for observations that a network of its own cannot predict yet."""

    def __init__(self, size):
        self.predictor, self.target = snt.Linear(8), snt.Linear(8)
        for module in (self.predictor, self.target):
            module(tf.zeros([1, size]))  # creates its variables
        self.trained = list(self.predictor.trainable_variables)
        self.carried = self.weights = list(self.target.trainable_variables)

    def errors(self, observation):
        """Return the errors of the predictions [T, N]."""
        found, wanted = (snt.BatchApply(m)(observation) for m in (self.predictor, self.target))
        return tf.reduce_mean((found - tf.stop_gradient(wanted)) ** 2, -1)

    def prepare(self, batch, reading):
        """Return the batch, and the observations that follow the steps."""
        return batch, tf.roll(batch.unrolls.observation, -1, axis=0)

    def bonus(self, batch, prepared):
        """Return what is added to the rewards that are learnt from."""
        return 0.1 * tf.stop_gradient(self.errors(batch.unrolls.observation))

    def loss(self, student, prepared):
        """Return the predictor's loss, and a metric."""
        errors = self.errors(prepared)
        return Added(student.reduce(errors), {"novelty": student.sums(errors)})


def make(config, environment, setup):
    """Return PPO with curiosity."""
    (size,) = environment.observation.shape
    features = Features([*setup.features, Curiosity(size)])
    return PPO(config, environment, setup._replace(features=features))
