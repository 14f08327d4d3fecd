"""A network of actions' values: duelling, and a burn-in that passes the state but no gradient."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import entry_spec
from impala_mm.algorithms.q_learning.draws import Acting, Calm
from impala_mm.algorithms.q_learning.network import QNetwork
from impala_mm.algorithms.q_learning.settings import QLearningSettings
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


KINDS = {
    "none": {},
    "categorical": {"value_distribution": "categorical", "num_atoms": 7},
    "quantiles": {"value_distribution": "quantiles", "huber_delta": 1.0},
}


def _network(name="MLPAgent", **settings):
    tf.random.set_seed(3)
    return QNetwork(QLearningSettings(agent_name=name, precision="float32", **settings), MEMORY)


@pytest.mark.parametrize(
    ("name", "burn_in", "kind"),
    [
        ("MLPAgent", 0, "none"),
        ("MLPAgent", 2, "categorical"),
        ("MLPLSTMAgent", 0, "categorical"),
        ("MLPLSTMAgent", 2, "quantiles"),
    ],
)
def test_an_unroll_is_read_as_its_steps_are(name, burn_in, kind):
    network = _network(name, duelling=True, noisy=True, **KINDS[kind])
    assert network.short_memory == ("" if name == "MLPLSTMAgent" else "nothing")
    entries, state = _entries(), network.initial_state(B)
    found = network.unroll(entries, state, Calm(), 5, burn_in).mean
    assert found.shape == (T - burn_in, B, MEMORY.num_actions)
    for t in range(T):
        entry = tf.nest.map_structure(lambda x, t=t: x[t], entries)
        values, state = network.step(entry, state, Calm())
        if t >= burn_in:
            np.testing.assert_allclose(found[t - burn_in], values, atol=1e-5)


def test_no_gradient_passes_through_the_burn_in():
    network = _network("MLPLSTMAgent")
    entries = _entries()._replace(first=tf.zeros([T, B], tf.bool))
    with tf.GradientTape() as tape:
        tape.watch(entries.observation)
        values = network.unroll(entries, network.initial_state(B), Calm(), 5, 2).mean
    gradient = tape.gradient(values, entries.observation).numpy()
    assert not gradient[:2].any()
    assert gradient[2:].any()


@pytest.mark.parametrize("noisy", [False, True])
def test_both_parts_of_a_duelling_network_have_a_hidden_layer_of_their_own(noisy):
    """By equation 9 of arXiv 1511.06581, in float64."""
    network = _network(duelling=True, duelling_units=6, noisy=noisy)
    for variable in network.trainable_variables:  # biases, too, are not 0
        variable.assign_add(0.1 * tf.random.normal(variable.shape))
    entries, state = _entries(), network.initial_state(B)
    e = tf.nest.map_structure(lambda x: x[0], entries)
    features, _ = network._body.step(e.observation, e.reward, e.action, e.first, state)

    def part(hidden, output):
        weights = [np.asarray(x, float) for x in (hidden.w, hidden.b, output.w, output.b)]
        inner = np.maximum(np.asarray(features, float) @ weights[0] + weights[1], 0)
        assert inner.shape == (B, 6)
        assert 0 < (inner == 0).mean() < 1
        return inner @ weights[2] + weights[3]

    advantages = part(network._hidden[0], network._advantages)
    value = part(network._hidden[1], network._value)
    expected = value + advantages - advantages.mean(-1, keepdims=True)
    found = network.unroll(entries, state, Calm(), 1).numbers
    np.testing.assert_allclose(found[0, ..., 0], expected, rtol=1e-4, atol=1e-5)


def test_categorical_advantages_have_the_mean_0():
    network = _network(duelling=True, **KINDS["categorical"])
    entries, state = _entries(), network.initial_state(B)
    before = network.unroll(entries, state, Calm(), 5).numbers.numpy()
    network._value.b.assign_add(tf.fill(network._value.b.shape, 2.0))
    network._advantages.b.assign_add(tf.fill(network._advantages.b.shape, 5.0))
    after = network.unroll(entries, state, Calm(), 5).numbers
    np.testing.assert_allclose(after, before + 2.0, atol=1e-5)


@pytest.mark.parametrize("duelling", [False, True])
def test_quantiles_are_those_of_implicit_quantile_networks(duelling):
    """By equation 4 of arXiv 1806.06923, in float64."""
    network = _network(**KINDS["quantiles"], duelling=duelling)
    for variable in network.trainable_variables:  # biases, too, are not 0
        variable.assign_add(0.1 * tf.random.normal(variable.shape))
    layers = {"levels": network._of_levels, "advantages": network._advantages}
    layers |= {"value": network._value} if duelling else {}
    w, b = ({k: np.asarray(getattr(v, n), float) for k, v in layers.items()} for n in "wb")
    entries, state = _entries(), network.initial_state(B)
    e = tf.nest.map_structure(lambda x: x[0], entries)
    psi, _ = network._body.step(e.observation, e.reward, e.action, e.first, state)
    psi, taus = np.asarray(psi[0], float), np.array([1, 3, 5]) / 6
    cosines = np.cos(np.pi * np.arange(64) * taus[:, None])
    phi = np.maximum(cosines @ w["levels"] + b["levels"], 0)
    assert 0 < (phi == 0).mean() < 1
    quantiles = (psi * phi) @ w["advantages"] + b["advantages"]  # [N, A]
    if duelling:
        value = (psi * phi) @ w["value"] + b["value"]
        quantiles += value - quantiles.mean(-1, keepdims=True)
    found = network.unroll(entries, state, Calm(), 3)
    np.testing.assert_allclose(found.levels[0, 0], taus)
    np.testing.assert_allclose(found.numbers[0, 0], quantiles.T, rtol=1e-4, atol=1e-5)
    fewer = network.unroll(entries, state, Calm(), 2)
    np.testing.assert_allclose(found.mean, fewer.mean, atol=1e-6)  # of num_policy_quantiles


def test_acting_has_noise_of_its_own_in_each_environment_and_none_where_it_is_greedy():
    network = _network(noisy=True, **KINDS["quantiles"])
    n = 400
    entry = tf.nest.map_structure(lambda x: tf.repeat(x[0, :1], n, 0), _entries())
    exploration = tf.constant([1.0] * (n // 2) + [0.0] * (n // 2))

    class Evenly(Acting):
        levels = Calm.levels

    values = network.step(entry, network.initial_state(n), Evenly(exploration))[0].numpy()
    calm = network.step(entry, network.initial_state(n), Calm())[0].numpy()
    np.testing.assert_allclose(values[n // 2 :], calm[n // 2 :], atol=1e-5)
    assert len(np.unique(values[: n // 2, 0])) == n // 2
    assert np.abs(values[: n // 2].mean(0) - calm[0]).max() < 0.3 * values[: n // 2].std(0).max()
