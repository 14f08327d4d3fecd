"""A learner answers its actors while an update runs."""

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


@pytest.mark.slow
@pytest.mark.parametrize(("compiled", "answered"), [("true", "before"), ("false", "after")])
def test_actors_are_answered_before_a_compiled_update_is_over(compiled, answered):
    """`test_start` has the numbers of threads that this needs."""
    flags = ["--level_name=Pendulum-v1", "--algorithm=ppo", f"--compile_updates={compiled}"]
    code, printed = run(sys.executable, "-c", PROGRAM, *flags, limit=120)
    assert code == 0, printed
    assert printed.split()[-1] == answered
