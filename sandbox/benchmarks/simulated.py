"""An algorithm whose update takes a given time: --algorithm=sandbox.benchmarks.simulated.

Everything around it is real: queue, steps agreed on, all-reduce of GRADIENTS bytes, publishing. The
time of update u on rank r is drawn from a generator of (r, u), so that the straggler bound can be
computed from the same draws. Set by environment variables, since `scaling.py` alone starts it.
"""

import os
import time

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import Variables, entry_spec
from impala_mm.place import place
from impala_mm.trajectory import UnrollSpec

GRADIENTS = 6_800_000  # bytes: those of IMPALA's deep network
_JITTER = 0.1  # of the time, each way


def seconds(milliseconds: float, rank: int, update: int) -> float:
    """That an update takes."""
    draw = np.random.default_rng([rank, update]).uniform(-_JITTER, _JITTER)
    return milliseconds / 1000 * (1 + draw)


def make(config, environment):
    """The algorithm for any environment with discrete actions."""
    return Simulated(config, environment)


class Simulated:
    """Acts at random; its update sleeps, and averages gradients that are zero."""

    max_lag = None

    def __init__(self, config, environment):
        self._milliseconds = float(os.environ["SIMULATED_MS"])
        self._rank, self._updates = place().rank, 0
        self._actions = environment.num_actions
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=())
        # A few large ones and many small, as networks have them.
        sizes = [GRADIENTS // 4 * 9 // 10, *[GRADIENTS // 4 // 200] * 20]
        weights = [tf.Variable(tf.zeros([size]), name=f"w{i}") for i, size in enumerate(sizes)]
        acting = [tf.Variable(tf.zeros([1]), name="acting")]
        self._optimizer = snt.optimizers.SGD(1e-3)
        self.variables = Variables(trained=weights, carried=acting, acting=acting)

    def initial_state(self, batch):
        """It remembers nothing."""
        return ()

    def act(self, entry, core_state, exploration):
        """Any action."""
        actions = tf.random.uniform(tf.shape(entry.action), 0, self._actions, tf.int32)
        return actions, core_state, ()

    def update(self, batch, context, exchange):
        """Waits as long as a device would compute."""
        factor = tf.numpy_function(self._compute, [], tf.float32)
        gradients = [tf.zeros_like(v) * factor for v in self.variables.trained]
        applied = exchange.apply(self._optimizer, gradients, self.variables.trained)
        metrics = {"grad_norm": applied.norm, "clipped_share": applied.clipped}
        return metrics, batch.weight

    def _compute(self):
        time.sleep(seconds(self._milliseconds, self._rank, self._updates))
        self._updates += 1
        return np.float32(1)
