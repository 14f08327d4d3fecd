"""An algorithm whose update takes a given time.

Choose it with --algorithm=sandbox.benchmarks.simulated_algorithm. Everything around it is real: the
queue, the agreement on steps, an all-reduce of GRADIENT_BYTES and publishing. As in a
convolutional network, a third of the time is the forward pass. Then the gradient of the layer
before the heads, which has nearly all weights, is ready; the gradients of the convolutions below it
follow one by one until the time is over.

The time of update u on rank r comes from a random generator with the seed (r, u), so that the
straggler bound can be computed from the same times. Environment variables set the mean time and the
milliseconds in which an actor acts, because only `scaling.py` uses this algorithm.
"""

import os
import time

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, PolicyOutput, entry_spec
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.runtime.starter import process_rank

GRADIENT_BYTES = 6_800_000  # the gradient size of IMPALA's deep network
_JITTER = 0.1  # largest relative deviation of an update's time
# Numbers of weights by layer, from the last layer down:
_LAYER_SIZES = [GRADIENT_BYTES // 4 * 9 // 10, *[GRADIENT_BYTES // 4 // 50] * 5]


def update_seconds(milliseconds: float, rank: int, update: int) -> float:
    """Return the seconds that an update takes."""
    deviation = np.random.default_rng([rank, update]).uniform(-_JITTER, _JITTER)
    return milliseconds / 1000 * (1 + deviation)


def make(config, environment):
    """Make the algorithm for any environment with discrete actions."""
    return SimulatedAlgorithm(config, environment)


class SimulatedAlgorithm(Algorithm):
    """An algorithm that acts at random; its update sleeps and averages zero gradients.

    The gradients are not applied: a device would need less than a millisecond for it, but these
    cores would need longer.
    """

    def __init__(self, config, environment):
        self._milliseconds = float(os.environ["SIMULATED_MS"])
        self._acting_seconds = float(os.environ.get("SIMULATED_ACTING_MS", "0")) / 1000
        self._rank, self._updates, self._began = process_rank().rank, 0, 0.0
        self._actions = environment.num_actions
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=())
        # Variables, because the graph would average constants only once.
        self._zeros = [tf.Variable(tf.zeros([size])) for size in _LAYER_SIZES]
        acting = [tf.Variable(tf.zeros([1]), name="acting")]
        self.variables = Variables(trained=acting, carried=[], acting=acting)

    def initial_state(self, batch):
        """Return an empty state."""
        return ()

    def act(self, entry, core_state, exploration):
        """Return random actions after a while."""
        wait = lambda: tf.numpy_function(self._act_slowly, [tf.ones([])], tf.float32)  # noqa: E731
        with tf.control_dependencies([wait()] if self._acting_seconds else []):
            actions = tf.random.uniform(tf.shape(entry.action), 0, self._actions, tf.int32)
        return actions, core_state, ()

    def judge(self, entry, core_state):
        """Return even probabilities and a value of 0; nothing evaluates this algorithm."""
        batch = tf.shape(entry.reward)[0]
        return PolicyOutput(tf.fill([batch, self._actions], 1 / self._actions), tf.zeros([batch]))

    def update(self, batch, context, exchange):
        """Wait as long as a device would compute."""
        gradients, done = [], tf.ones([])
        for layer, zeros in enumerate(self._zeros):
            done = tf.numpy_function(self._wait_for_layer, [done, layer], tf.float32)
            with tf.control_dependencies([done]):
                gradients.append(zeros.read_value())
        averaged = exchange.average(gradients)
        zero = tf.add_n([gradient[0] for gradient in averaged])
        return {"grad_norm": zero, "clipped_share": zero}, batch.weight

    def _act_slowly(self, done):
        time.sleep(self._acting_seconds)
        return done

    def _wait_for_layer(self, done, layer):
        """Wait until the gradient of this layer would be ready."""
        if layer == 0:
            self._began = time.monotonic()
        total = update_seconds(self._milliseconds, self._rank, self._updates)
        share = (1 + 2 * layer / (len(_LAYER_SIZES) - 1)) / 3
        time.sleep(max(0.0, self._began + share * total - time.monotonic()))
        self._updates += layer == len(_LAYER_SIZES) - 1
        return done
