"""A network of actions' values: duelling, and a burn-in that passes the state but no gradient."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import entry_spec
from impala_mm.algorithms.q_learning.draws import Acting, Calm, Trained
from impala_mm.algorithms.q_learning.network import QNetwork
from impala_mm.algorithms.q_learning.settings import QLearningSettings
from impala_mm.distributed.group import SingleLearner
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["MLPAgent", "MLPLSTMAgent"])
@pytest.mark.parametrize("burn_in", [0, 2])
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


@pytest.mark.parametrize("units", [0, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_duelling_advantages_have_the_mean_0(kind, units):
    network = _network(duelling=True, duelling_units=units, **KINDS[kind])
    entries, state = _entries(), network.initial_state(B)

    def numbers():
        return network.unroll(entries, state, Calm(), 5).numbers.numpy()

    def bias(part):
        return next(v for v in network.trainable_variables if v.name.endswith(f"{part}/b:0"))

    before = numbers()
    bias("value").assign_add(tf.fill(bias("value").shape, 2.0))
    after = numbers()
    np.testing.assert_allclose(after, before + 2.0, atol=1e-5)
    bias("advantages").assign_add(tf.fill(bias("advantages").shape, 5.0))
    np.testing.assert_allclose(numbers(), after, atol=1e-5)


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


def test_a_quantile_depends_on_its_level_and_on_no_other():
    network = _network(**KINDS["quantiles"], num_policy_quantiles=4)
    entries, state = _entries(), network.initial_state(B)
    few, many = (network.unroll(entries, state, Calm(), n) for n in (2, 6))
    assert many.numbers.shape == (T, B, MEMORY.num_actions, 6)
    np.testing.assert_allclose(few.levels[0, 0], [0.25, 0.75])
    np.testing.assert_allclose(many.levels[0, 0, 1::3], [0.25, 0.75])
    np.testing.assert_allclose(many.numbers[..., 1::3], few.numbers, atol=1e-6)
    assert np.ptp(many.numbers, axis=-1).min() > 1e-4
    np.testing.assert_allclose(few.mean, many.mean, atol=1e-6)  # of num_policy_quantiles


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
    found = network.unroll(entries, state, Calm(), 3).numbers
    np.testing.assert_allclose(found[0, 0], quantiles.T, rtol=1e-4, atol=1e-5)


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


def test_an_update_has_one_noise_for_its_batch_and_another_one_in_the_next():
    network = _network(noisy=True)
    entries = tf.nest.map_structure(lambda x: tf.repeat(x[:, :1], B, 1), _entries())

    def values(update, use):
        draws = Trained(SingleLearner(), 1, tf.constant(update, tf.int64), use, B, 1)
        return network.unroll(entries, network.initial_state(B), draws, 1).mean.numpy()

    first = values(0, 0)
    np.testing.assert_allclose(first, np.repeat(first[:, :1], B, 1), atol=1e-6)
    np.testing.assert_array_equal(first, values(0, 0))
    for other in (values(1, 0), values(0, 1)):
        assert np.abs(first - other).max() > 1e-2
