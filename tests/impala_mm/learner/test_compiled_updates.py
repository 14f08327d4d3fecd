"""A learner answers its actors while an update runs."""

import os
import sys

import pytest
from processes import run

# An update of some seconds in a thread, and a call like those that answer actors.
PROGRAM = """
import sys, threading
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.runtime import lifecycle
lifecycle.load_tensorflow()
import tensorflow as tf
from impala_mm.learner import start
(config,), _ = command_line.parse(sys.argv, "", Config)
start.find_levels_and_device(config)
{}
@tf.function(autograph=False)
def answer(x):
    return tf.numpy_function(lambda x: x + 1.0, [x], tf.float32)

over = threading.Event()
update(short=True), answer(1.0)
thread = threading.Thread(target=lambda: (update(), over.set()))
thread.start()
over.wait(0.2)
answer(1.0)
print("before" if not over.is_set() else "after")
"""

COMPILED = """
@tf.function(jit_compile=True, autograph=False)
def passes(x, steps):
    return tf.while_loop(lambda i, x: i < steps, lambda i, x: (i + 1, tf.tanh(x @ x)), (0, x))[1]

@tf.function(autograph=False)
def read_and_pass(x, steps):
    read = tf.numpy_function(lambda x: x, [x], tf.float32)
    return passes(tf.ensure_shape(read, [200, 200]), steps)

x = tf.random.uniform([200, 200]) / 100

def update(short=False):
    steps = tf.constant(1 if short else 4_000)  # a number would be traced in the thread
    return read_and_pass(x, steps).numpy()
"""

SIDE_BY_SIDE = """
import dataclasses
import numpy as np
from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Context
from impala_mm.data import batches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec

sizes = {"minibatch_steps": 1024, "mlp_sizes": "256,256", "batch_size": 8, "unroll_length": 8}
config = dataclasses.replace(config, compile_updates=False, precision="float32", **sizes)
algorithm = registry.make_algorithm(config, level_spec(config.level_name))
count = 64 * algorithm.minibatch_columns  # 64 optimizer steps
batch = batches.zeros(algorithm.unroll._replace(length=1), count)
inputs = tf.nest.map_structure(tf.constant, batch._replace(weight=np.ones(count, np.float32)))
context = Context(tf.constant(0.0), tf.constant(1.0), tf.constant(0.0))
exchange = GradientReducer(SingleLearner(), config)
sac_update = tf.function(lambda: algorithm.update(inputs, context, exchange)[0], autograph=False)

def update(short=False):
    return float(sac_update()["loss/total"])
"""


@pytest.mark.parametrize(
    ("flags", "answered"),
    [
        (["--algorithm=ppo"], "before"),
        pytest.param(["--algorithm=sac", "--mlp_sizes=64,64"], "before", marks=pytest.mark.slow),
        pytest.param(
            ["--algorithm=ppo", "--compile_updates=false"], "after", marks=pytest.mark.slow
        ),
    ],
)
def test_actors_are_answered_before_a_compiled_update_is_over(flags, answered):
    level = "--level_name=Pendulum-v1"
    code, printed = run(sys.executable, "-c", PROGRAM.format(COMPILED), level, *flags, limit=120)
    assert code == 0, printed
    assert printed.split()[-1] == answered


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no second thread")
def test_actors_are_answered_while_two_networks_are_computed_at_a_time():
    flags = ["--algorithm=sac", "--level_name=Pendulum-v1"]
    code, printed = run(sys.executable, "-c", PROGRAM.format(SIDE_BY_SIDE), *flags, limit=120)
    assert code == 0, printed
    assert printed.split()[-1] == "before"
