"""A learner answers its actors while an update runs."""

import os
import sys

import pytest
from processes import ROOT, run

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
import sac_step
sac_update = sac_step.make_update(1024, 256, False, ["--level_name=Pendulum-v1"])

def update(short=False):
    return sac_update()
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
    benchmarks = ROOT / "sandbox" / "benchmarks"
    given = ("--algorithm=sac", "--level_name=Pendulum-v1")
    code, printed = run(
        sys.executable,
        "-c",
        PROGRAM.format(SIDE_BY_SIDE),
        *given,
        limit=120,
        PYTHONPATH=str(benchmarks),
    )
    assert code == 0, printed
    assert printed.split()[-1] == "before"
