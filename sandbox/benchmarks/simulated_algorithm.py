"""An algorithm whose update takes a given time: --algorithm=sandbox.benchmarks.simulated_algorithm.

Everything around it is real: queue, steps agreed on, all-reduce of GRADIENT_BYTES, publishing. As
in a convolutional network, a third of the time is the forward pass; then comes the gradient of the
one layer that has nearly all weights, which is the last but heads; then those of the convolutions
below it, one by one, until the time is over.

The time of update u on rank r is drawn from a generator of (r, u), so that the straggler bound can
be computed from the same draws. Set by environment variables, since `scaling.py` alone starts it.
"""

import os
import time

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import entry_spec
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.runtime.rank import process_rank

GRADIENT_BYTES = 6_800_000  # bytes: those of IMPALA's deep network
_JITTER = 0.1  # of the time, each way
# Of the gradients of its layers:
_LAYER_SIZES = [GRADIENT_BYTES // 4 * 9 // 10, *[GRADIENT_BYTES // 4 // 50] * 5]


def update_seconds(milliseconds: float, rank: int, update: int) -> float:
    """Returns the seconds that an update takes."""
    deviation = np.random.default_rng([rank, update]).uniform(-_JITTER, _JITTER)
    return milliseconds / 1000 * (1 + deviation)


def make(config, environment):
    """Makes the algorithm for any environment with discrete actions."""
    return SimulatedAlgorithm(config, environment)


class SimulatedAlgorithm:
    """Acts at random; its update sleeps, and averages gradients that are zero.

    They are not applied: a device would do that in less than a millisecond, these cores do not.
    """

    max_lag = None

    def __init__(self, config, environment):
        self._milliseconds = float(os.environ["SIMULATED_MS"])
        self._rank, self._updates, self._began = process_rank().rank, 0, 0.0
        self._actions = environment.num_actions
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=())
        # Variables: the average of constants would be computed once, as a constant.
        self._zeros = [tf.Variable(tf.zeros([size])) for size in _LAYER_SIZES]
        acting = [tf.Variable(tf.zeros([1]), name="acting")]
        self.variables = Variables(trained=acting, carried=[], acting=acting)

    def initial_state(self, batch):
        """It remembers nothing."""
        return ()

    def act(self, entry, core_state, exploration):
        """Any action."""
        actions = tf.random.uniform(tf.shape(entry.action), 0, self._actions, tf.int32)
        return actions, core_state, ()

    def update(self, batch, context, exchange):
        """Waits as long as a device would compute."""
        gradients, done = [], tf.ones([])
        for layer, zeros in enumerate(self._zeros):
            done = tf.numpy_function(self._wait_for_layer, [done, layer], tf.float32)
            with tf.control_dependencies([done]):
                gradients.append(zeros.read_value())
        averaged = exchange.average(gradients)
        zero = tf.add_n([gradient[0] for gradient in averaged])
        return {"grad_norm": zero, "clipped_share": zero}, batch.weight

    def _wait_for_layer(self, done, layer):
        """Returns when the gradient of this layer is there."""
        if layer == 0:
            self._began = time.monotonic()
        total = update_seconds(self._milliseconds, self._rank, self._updates)
        share = (1 + 2 * layer / (len(_LAYER_SIZES) - 1)) / 3
        time.sleep(max(0.0, self._began + share * total - time.monotonic()))
        self._updates += layer == len(_LAYER_SIZES) - 1
        return done
