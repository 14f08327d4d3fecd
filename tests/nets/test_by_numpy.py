"""The GRU and the ResNet, computed by NumPy in float64 from their definitions."""

import numpy as np
import pytest
import tensorflow as tf

import nets
from nets import agents


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_gru_is_computed_as_defined_and_restarts_with_an_episode():
    T, B, I, H = 6, 3, 4, 5  # noqa: E741
    random = np.random.default_rng(0)
    core = nets.GRU(H)
    inputs = random.standard_normal([T, B, I])
    first = np.zeros([T, B], bool)
    first[0, 0] = first[2, 1] = first[3] = True
    state = random.standard_normal([B, H])
    core.step(tf.zeros([1, I]), tf.constant([False]), core.initial_state(1))
    np.testing.assert_array_equal(core.read.b, [0] * H + [1] * H + [0] * H)
    for variable in core.trainable_variables:
        variable.assign(random.standard_normal(variable.shape))
    read, recall = (
        [np.float64(layer.w.numpy()), np.float64(layer.b.numpy())]
        for layer in (core.read, core.recall)
    )

    expected, hidden = [], state
    for t in range(T):
        hidden = np.where(first[t][:, None], 0, hidden)
        of_input = np.split(inputs[t] @ read[0] + read[1], 3, axis=-1)
        of_state = np.split(hidden @ recall[0] + recall[1], 3, axis=-1)
        reset, update = (_sigmoid(of_input[i] + of_state[i]) for i in (0, 1))
        candidate = np.tanh(of_input[2] + reset * of_state[2])
        hidden = update * hidden + (1 - update) * candidate
        expected.append(hidden)
    for unroll in (core.unroll, tf.function(core.unroll, autograph=False)):
        features, last = unroll(
            tf.constant(inputs, tf.float32), tf.constant(first), tf.constant(state, tf.float32)
        )
        np.testing.assert_allclose(features, expected, atol=1e-5)
        np.testing.assert_array_equal(last, features[-1])


def _convolved(x, layer):
    """Return x [H, W, C] convolved by a layer of 3x3 pixels, as large as x."""
    w, b = np.float64(layer.w.numpy()), np.float64(layer.b.numpy())
    height, width, _ = x.shape
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    terms = [padded[i : i + height, j : j + width] @ w[i, j] for i in range(3) for j in range(3)]
    return sum(terms) + b


def _pooled(x):
    """Return the largest of 3x3 pixels, every second one; a border is left out."""
    height, width, _ = x.shape
    before = [int(size % 2) for size in (height, width)]  # as TensorFlow pads where it needs to
    padded = np.pad(x, [(n, 2) for n in before] + [(0, 0)], constant_values=-np.inf)
    windows = [padded[i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
    return np.max(windows, axis=0)


@pytest.mark.parametrize("units", [7, 0])
def test_a_resnet_of_another_width_is_computed_as_defined(units):
    torso, core = agents.resnet(nets.Style(conv_factor=0.25, conv_units=units))
    assert core is None
    images = np.random.default_rng(0).standard_normal([2, 9, 8, 3])
    features = torso(tf.constant(images, tf.float32))
    expected = []
    for image in images:
        read = image
        for section, channels in zip(torso._sections, (4, 8, 8), strict=True):
            read = _pooled(_convolved(read, section._enter))
            assert read.shape[-1] == channels
            for one, other in section._blocks:
                inner = _convolved(np.maximum(read, 0), one)
                read = read + _convolved(np.maximum(inner, 0), other)
        read = np.maximum(read, 0).ravel()
        if units:
            read = np.maximum(read @ torso._linear.w.numpy() + torso._linear.b.numpy(), 0)
        expected.append(read)
    np.testing.assert_allclose(features, expected, atol=1e-4)
    assert features.shape == (2, units or 2 * 1 * 8)
