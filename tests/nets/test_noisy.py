"""Noisy layers compute what a layer with a matrix of noise for each row would."""

import numpy as np
import pytest
import tensorflow as tf
from network_inputs import ACTIONS, SMALL, spec_for

import nets
from nets import noisy

ROWS, INPUTS, OUTPUTS = 5, 3, 4


def _drawn(rows, seed=0):
    random = np.random.default_rng(seed)
    return [tf.constant(random.normal(size=[rows, n])) for n in (INPUTS, OUTPUTS)]


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("between", [[], [2]])
def test_each_row_is_multiplied_by_the_mean_and_its_own_noise(rows, between):
    layer, random = noisy.NoisyLinear(OUTPUTS, 0.5), np.random.default_rng(1)
    x = random.normal(size=[ROWS, *between, INPUTS])
    calm = layer(tf.constant(x)).numpy()
    np.testing.assert_allclose(calm, x @ layer.w.numpy() + layer.b.numpy(), rtol=1e-9)
    np.testing.assert_allclose(layer.noise_w, 0.5 / np.sqrt(INPUTS))
    for variable in (layer.noise_w, layer.noise_b):
        variable.assign(random.normal(size=variable.shape))
    drawn = _drawn(rows)
    with noisy.noise(lambda *sizes: drawn):
        found = layer(tf.constant(x)).numpy()
    for i in range(ROWS):
        of_inputs, of_outputs = (d.numpy()[i % rows] for d in drawn)
        matrix = layer.w.numpy() + layer.noise_w.numpy() * np.outer(of_inputs, of_outputs)
        bias = layer.b.numpy() + layer.noise_b.numpy() * of_outputs
        np.testing.assert_allclose(found[i], x[i] @ matrix + bias, rtol=1e-9)
    np.testing.assert_array_equal(layer(tf.constant(x)), calm)


def test_squashed_numbers_keep_their_signs_and_have_roots_of_their_sizes():
    np.testing.assert_allclose(noisy.squashed(tf.constant([4.0, -9.0, 0.0])), [2.0, -3.0, 0.0])


@pytest.mark.parametrize("name", ["MLPAgent", "SmallConvAgent", "ResNetLSTMAgent"])
def test_the_connected_layers_of_every_network_are_noisy(name):
    spec = spec_for(name)
    made = nets.make(name, spec, ACTIONS, style=nets.Style(noise_scale=0.5))
    layers = [m for m in made.submodules if isinstance(m, noisy.NoisyLinear)]
    assert len(layers) == (2 if name.startswith("MLP") else 1)
    assert not any(
        isinstance(m, noisy.NoisyLinear) for m in nets.make(name, spec, ACTIONS).submodules
    )
    zeros = tf.zeros([2, *spec.shape], spec.dtype)
    entry = (zeros, tf.zeros([2]), tf.zeros([2], tf.int32), tf.constant([True, True]))

    def read():
        return made.step(*entry, made.initial_state(2))[0].numpy()

    with noisy.noise(lambda i, o: [noisy.squashed(tf.random.normal([2, n])) for n in (i, o)]):
        noise = read()
    calm = read()
    np.testing.assert_allclose(calm[0], calm[1], atol=1e-6)
    assert np.abs(noise[0] - noise[1]).max() > 1e-3


def test_noise_is_computed_in_the_precision_of_the_torso():
    made = nets.make("SmallConvAgent", SMALL, ACTIONS, 1, "bfloat16", nets.Style(noise_scale=0.5))
    drawn = {}

    def draw(*sizes):
        return drawn.setdefault(sizes, [tf.ones([1, n]) for n in sizes])

    with noisy.noise(draw):
        features, _ = made.step(
            tf.zeros([2, *SMALL.shape], SMALL.dtype), tf.zeros([2]), tf.zeros([2], tf.int32),
            tf.constant([True, True]), made.initial_state(2),
        )  # fmt: skip
    assert drawn
    assert features.dtype == tf.float32
