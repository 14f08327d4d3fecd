"""IMPALA whose updates take hundreds of times the work: --algorithm=tests.helpers.heavy."""

import tensorflow as tf

from impala_mm.algorithms.impala.algorithm import Impala

TIMES = 500  # how often each unroll of the batch is repeated


def make(config, environment):
    return Heavy(config, environment)


class Heavy(Impala):
    def update(self, batch, context, exchange):
        columns = tf.nest.map_structure(lambda x: tf.repeat(x, TIMES, axis=1), batch.unrolls)
        others = tf.nest.map_structure(lambda x: tf.repeat(x, TIMES, axis=0), batch[1:])
        metrics, _ = super().update(type(batch)(columns, *others), context, exchange)
        return metrics, batch.weight
