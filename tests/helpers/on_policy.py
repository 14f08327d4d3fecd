"""IMPALA in rounds, whose metrics tell what a batch holds: --algorithm=tests.helpers.on_policy."""

import tensorflow as tf

from impala_mm.algorithms.impala.algorithm import Impala


def make(config, environment, setup):
    return OnPolicy(config, environment, setup)


class OnPolicy(Impala):
    rounds = True

    def update(self, batch, context, exchange):
        metrics, priorities = super().update(batch, context, exchange)
        oldest, newest = tf.reduce_min(batch.version), tf.reduce_max(batch.version)
        metrics["versions"] = tf.cast(1 + newest - oldest, tf.float32)
        metrics["fresh_columns"] = tf.reduce_sum(tf.cast(batch.fresh, tf.float32))
        return metrics, priorities
