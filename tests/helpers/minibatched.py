"""Q-learning with minibatches: --algorithm=tests.helpers.minibatched.

Each update makes two epochs of two minibatches. With the environment variable FAULT_AT=N, a
gradient of learner 1 is not finite in the third step of update N.
"""

import os

import tensorflow as tf

from impala_mm.data import batches
from impala_mm.runtime.starter import process_rank
from tests.helpers.dqn_like import DQNLike


def make(config, environment):
    return Minibatched(config, environment)


class Minibatched(DQNLike):
    """The Q-learner with four steps per update."""

    def __init__(self, config, environment):
        super().__init__(config, environment)
        self._steps = tf.Variable(0)
        self.variables.carried.append(self._steps)

    def update(self, batch, context, exchange):
        number = self._updates.assign_add(1)
        for target, online in zip(self._targets, self.variables.trained, strict=True):
            target.assign(tf.where(number % 50 == 0, online, target))
        fails = tf.equal(number, int(os.environ.get("FAULT_AT", "0"))) & (process_rank().rank == 1)

        def step(columns):
            k = self._steps.assign_add(1)
            part = batches.columns(batch, columns).unrolls
            after = tf.nest.map_structure(lambda x: x[1:], part)
            future = tf.reduce_max(self._values(self._target, self._heads[1], after), -1)
            goal = after.reward + self._gamma * tf.where(after.terminated, 0.0, future)
            bad = tf.where(fails & (k % 4 == 3), float("nan"), 1.0)

            def compute():
                loss, error = self._loss(part, after, goal)
                return loss * bad, error

            (loss, error), gradients = exchange.differentiate(compute, self.variables.trained)
            exchange.apply(self._optimizer, gradients, self.variables.trained)
            return {"loss/total": loss, "error": tf.reduce_mean(tf.abs(error))}

        result = exchange.minibatches(step, batch.weight.shape[0], epochs=2, count=2)
        return result.metrics | {"steps_made": result.steps}, batch.weight
