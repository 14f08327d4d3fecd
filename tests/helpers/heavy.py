"""IMPALA whose updates take hundreds of times the work: --algorithm=tests.helpers.heavy."""

import tensorflow as tf

from impala_mm.algorithms import impala

TIMES = 500  # how often each unroll of the batch is repeated


def make(config, environment):
    return Heavy(impala.make(config, environment))


class Heavy:
    def __init__(self, algorithm):
        self._algorithm = algorithm
        self.unroll = algorithm.unroll
        self.variables = algorithm.variables
        self.initial_state, self.act = algorithm.initial_state, algorithm.act
        self.judge = algorithm.judge

    def update(self, batch, context, exchange):
        columns = tf.nest.map_structure(lambda x: tf.repeat(x, TIMES, axis=1), batch.unrolls)
        others = tf.nest.map_structure(lambda x: tf.repeat(x, TIMES, axis=0), batch[1:])
        metrics, _ = self._algorithm.update(type(batch)(columns, *others), context, exchange)
        return metrics, batch.weight
