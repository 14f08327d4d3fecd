"""A network of actions' values: duelling, and a burn-in that passes the state but no gradient."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import entry_spec
from impala_mm.algorithms.q_network import QNetwork
from impala_mm.config.settings import Config
from impala_mm.environments.make import level_spec

T, B = 5, 3
MEMORY = level_spec("memory")


def _entries(seed=0):
    random = np.random.default_rng(seed)

    def draw(spec):
        shape = [T, B, *spec.shape]
        if spec.dtype == tf.bool:
            return tf.constant(random.random(shape) < 0.2)
        if spec.dtype.is_integer:
            return tf.constant(random.integers(0, 2, shape), spec.dtype)
        return tf.constant(random.random(shape), spec.dtype)

    return tf.nest.map_structure(draw, entry_spec(MEMORY, extras=()))


@pytest.mark.parametrize("name", ["MLPAgent", "MLPLSTMAgent"])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_an_unroll_is_read_as_its_steps_are(name, burn_in):
    network = QNetwork(Config(agent_name=name, precision="float32"), MEMORY, duelling=True)
    assert network.remembers == (name == "MLPLSTMAgent")
    entries, state = _entries(), network.initial_state(B)
    found = network.unroll(entries, state, burn_in)
    assert found.shape == (T - burn_in, B, MEMORY.num_actions)
    for t in range(T):
        entry = tf.nest.map_structure(lambda x, t=t: x[t], entries)
        values, state = network.step(entry, state)
        if t >= burn_in:
            np.testing.assert_allclose(found[t - burn_in], values, atol=1e-5)


def test_no_gradient_passes_through_the_burn_in():
    network = QNetwork(
        Config(agent_name="MLPLSTMAgent", precision="float32"), MEMORY, duelling=False
    )
    entries = _entries()._replace(first=tf.zeros([T, B], tf.bool))
    with tf.GradientTape() as tape:
        tape.watch(entries.observation)
        values = network.unroll(entries, network.initial_state(B), 2)
    gradient = tape.gradient(values, entries.observation).numpy()
    assert not gradient[:2].any()
    assert gradient[2:].any()


def test_duelling_advantages_have_the_mean_0():
    network = QNetwork(Config(precision="float32"), MEMORY, duelling=True)
    entry = tf.nest.map_structure(lambda x: x[0], _entries())
    before, _ = network.step(entry, network.initial_state(B))
    value = next(v for v in network.trainable_variables if "value" in v.name and "b" in v.name[-4:])
    value.assign_add([2.0])
    after, _ = network.step(entry, network.initial_state(B))
    np.testing.assert_allclose(after, before + 2.0, atol=1e-5)
    advantages = next(
        v for v in network.trainable_variables if "advantages" in v.name and "b" in v.name[-4:]
    )
    advantages.assign_add(tf.fill(advantages.shape, 5.0))
    np.testing.assert_allclose(network.step(entry, network.initial_state(B))[0], after, atol=1e-5)
