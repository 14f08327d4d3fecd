"""An algorithm in the test's own process: the data that actors would send, and its updates."""

from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.interface import Context, Role, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.distributed import gradients
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments import from_flags
from impala_mm.environments.make import level_spec


def make(config):
    """Return the algorithm of a learner with this configuration."""
    tf.random.set_seed(config.seed)
    return make_algorithm(config, level_spec(config.level_name))


def made(algorithm, level, spec=lambda spec: spec, group=None, role=Role.LEARNER, **settings):
    """Return an algorithm and its exchange of gradients; `spec` may change what is played."""
    config = Config.of_algorithm(algorithm)(algorithm=algorithm, level_name=level, **settings)
    tf.random.set_seed(1)
    (environment,) = map(spec, from_flags.level_specs(config).values())
    learns = make_algorithm(config, environment, Setup(role))
    return learns, gradients.GradientReducer(group or SingleLearner(), config)


def random_batch(algorithm, steps, columns, seed=0, choices=2):
    """Return a batch of random arrays in which no episode ends; the last column is padding."""
    random = np.random.default_rng(seed)

    def draw(spec, *leading):
        shape, dtype = [*leading, *spec.shape], spec.dtype.as_numpy_dtype
        if spec.dtype == tf.bool:
            return random.random(shape) < 0.6
        if spec.dtype.is_integer:
            return random.integers(0, 256 if spec.dtype == tf.uint8 else choices, shape, dtype)
        return random.uniform(-0.9, 0.9, shape).astype(dtype)

    entries = tf.nest.map_structure(lambda x: draw(x, steps, columns), algorithm.unroll.step)
    flags = {
        name: np.zeros([steps, columns], bool) for name in ("terminated", "truncated", "first")
    }
    start = tf.nest.map_structure(draw, algorithm.initial_state(columns))
    numbers, weight = np.arange(columns), np.float32(np.arange(columns) < columns - 1)
    return Batch(entries._replace(**flags), start, numbers, weight, numbers, weight > 0)


def tensors(batch, columns=None):
    """Return these columns of a batch, or all, as tensors."""
    chosen = batch if columns is None else batches.columns(batch, columns)
    return tf.nest.map_structure(tf.constant, chosen)


def fill(*groups, spread=0.5):
    """Assign random numbers to variables."""
    random = np.random.default_rng(7)
    for variable in (v for group in groups for v in group):
        variable.assign(random.normal(size=variable.shape) * spread)


def updater(algorithm, config, changed=lambda batch: batch, traced=True):
    """Return a function that makes one update from (unrolls, the run's progress).

    `changed` changes the batch before the algorithm sees it. A few updates take less time if they
    are not `traced`.
    """
    codec = UnrollCodec(algorithm.unroll)
    alone = gradients.GradientReducer(SingleLearner(), config)

    signature = [tf.TensorSpec([None], tf.string), tf.TensorSpec([])]

    def update(contents, over):
        batch = changed(decoded(codec, contents))
        alone.begin(tf.constant(0, tf.int64))
        metrics, _ = algorithm.update(batch, Context(over, tf.ones([]), tf.constant(0.0)), alone)
        return metrics | {"grad_norm": alone.read()[1][0]}  # as `TrainStep` adds it

    if traced:
        update = tf.function(update, signature, autograph=False)
    return lambda contents, over: update(tf.constant(contents), tf.constant(over, tf.float32))


def encoded(codec, unroll):
    """Encode the arrays of one environment's unroll as they are sent."""
    rows = np.zeros([1, codec.size], np.uint8)
    for array, value in zip(
        tf.nest.flatten(codec.arrays(rows)), tf.nest.flatten(unroll), strict=True
    ):
        assert array.shape == (1, *np.shape(value))
        array[0] = value
    return rows.tobytes()


def decoded(codec, contents):
    """Return unrolls from an actor as the batch that a learner's source makes of them."""
    entries, start = codec.decode(contents)
    size = tf.size(contents)
    keys = tf.range(tf.cast(size, tf.int64))
    return Batch(
        entries, start, keys, tf.ones([size]), tf.zeros_like(keys), tf.ones([size], tf.bool)
    )


class Outputs(NamedTuple):
    """The outputs of IMPALA's network for a batch."""

    logits: tf.Tensor  # [T+1, B, A]
    values: tf.Tensor  # [T+1, B]


def outputs(algorithm, batch):
    """Return the outputs from which IMPALA's update computes its loss."""
    e = batch.unrolls
    features, _ = algorithm._network.unroll(e.observation, e.reward, e.action, e.first, batch.start)
    logits = snt.BatchApply(algorithm._policy_head)(features)
    values = tf.squeeze(snt.BatchApply(algorithm._baseline_head)(features), -1)
    return Outputs(logits, values)


def by_xla(function):
    """Return whether the only trace of a tf.function calls a part that XLA must compile."""
    calls = function.get_concrete_function().graph.get_operations()
    return any(call.node_def.attr["_XlaMustCompile"].b for call in calls)


def batch_with_ends(algorithm, columns):
    """Return a random batch of single steps: a termination, a truncation, a reset, and padding."""
    batch = random_batch(algorithm, 2, columns)
    e = batch.unrolls
    e.terminated[1, 0] = e.truncated[1, 1] = e.first[1, 2] = True
    return batch
