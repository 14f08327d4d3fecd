"""IMPALA whose gradient is not finite from update 30 on: --algorithm=tests.breaks."""

import tensorflow as tf

from impala_mm.algorithms import impala


def make(config, environment):
    algorithm = impala.make(config, environment)
    updates = tf.Variable(0)
    update = algorithm.update

    class Breaking:
        """The exchange, with gradients that break."""

        def __init__(self, exchange):
            self._exchange = exchange
            self.mean = exchange.mean

        def apply(self, optimizer, gradients, variables):
            factor = tf.where(updates.assign_add(1) > 30, float("nan"), 1.0)
            return self._exchange.apply(optimizer, [g * factor for g in gradients], variables)

    algorithm.update = lambda batch, context, exchange: update(batch, context, Breaking(exchange))
    return algorithm
