"""An algorithm in the test's own process: what actors would send it, and its updates."""

from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Context
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.distributed import gradients, group
from impala_mm.environments.make import level_spec


def make(config):
    """The algorithm that a learner of this configuration has."""
    tf.random.set_seed(config.seed)
    return registry.make_algorithm(config, level_spec(config.level_name))


def updater(algorithm, config, changed=lambda batch: batch):
    """A function of (unrolls as a Player gives them, share of the run that is over): one update.

    `changed` is what happens to the batch before the algorithm sees it.
    """
    codec = UnrollCodec(algorithm.unroll)
    alone = gradients.GradientReducer(group.SingleLearner(), config)

    signature = [tf.TensorSpec([None], tf.string), tf.TensorSpec([])]

    @tf.function(input_signature=signature, autograph=False)
    def update(contents, over):
        batch = changed(decoded(codec, contents))
        metrics, _ = algorithm.update(batch, Context(over, tf.ones([]), tf.constant(0.0)), alone)
        return metrics

    return lambda contents, over: update(tf.constant(contents), tf.constant(over, tf.float32))


def encoded(codec, unroll):
    """One environment's unroll, of arrays, as it travels."""
    rows = np.zeros([1, codec.size], np.uint8)
    for array, value in zip(
        tf.nest.flatten(codec.arrays(rows)), tf.nest.flatten(unroll), strict=True
    ):
        assert array.shape == (1, *np.shape(value))
        array[0] = value
    return rows.tobytes()


def decoded(codec, contents):
    """Unrolls straight from an actor as the batch that a learner's source makes of them."""
    entries, start = codec.decode(contents)
    size = tf.size(contents)
    keys = tf.range(tf.cast(size, tf.int64))
    return Batch(
        entries, start, keys, tf.ones([size]), tf.zeros_like(keys), tf.ones([size], tf.bool)
    )


class Outputs(NamedTuple):
    """What IMPALA's network says about a batch."""

    logits: tf.Tensor  # [T+1, B, A]
    values: tf.Tensor  # [T+1, B]


def outputs(algorithm, batch):
    """The outputs that IMPALA's update computes its loss from."""
    e = batch.unrolls
    features, _ = algorithm._network.unroll(e.observation, e.reward, e.action, e.first, batch.start)
    logits = snt.BatchApply(algorithm._policy_head)(features)
    values = tf.squeeze(snt.BatchApply(algorithm._baseline_head)(features), -1)
    return Outputs(logits, values)
