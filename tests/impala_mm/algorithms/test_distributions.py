"""Categorical against sums written out in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.distributions import Categorical


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    leading=st.lists(st.integers(1, 3), max_size=3),
    num_actions=st.integers(1, 6),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_log_probability_entropy_and_mode_are_the_softmaxs(seed, leading, num_actions, spread):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (*leading, num_actions)).astype(np.float32)
    actions = rng.integers(0, num_actions, leading).astype(np.int32)
    policy = Categorical(tf.constant(logits))

    exact = logits.astype(np.float64)
    exact = exact - exact.max(axis=-1, keepdims=True)
    log_probs = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    of_action = np.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]
    entropy = -np.sum(np.exp(log_probs) * log_probs, axis=-1)

    assert policy.log_prob(actions).shape == tuple(leading)
    np.testing.assert_allclose(policy.log_prob(actions), of_action, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(policy.mode(), np.argmax(logits, axis=-1))
    assert policy.mode().dtype == tf.int32


def test_samples_come_as_often_as_they_are_likely():
    """In 20,000 draws of p = (0.1, 0.6, 0.3) each share has a deviation below 0.0035."""
    tf.random.set_seed(1)
    probs = np.float32([0.1, 0.6, 0.3])
    drawn = Categorical(tf.broadcast_to(tf.math.log(probs), [100, 200, 3])).sample()
    assert (drawn.shape, drawn.dtype) == ((100, 200), tf.int32)
    shares = np.bincount(drawn.numpy().ravel(), minlength=3) / drawn.numpy().size
    np.testing.assert_allclose(shares, probs, atol=0.015)


@pytest.mark.parametrize("leading", [[], [4], [2, 3], [2, 1, 3]])
def test_a_sample_has_the_leading_shape(leading):
    policy = Categorical(tf.zeros([*leading, 5]))
    assert policy.sample().shape == leading
    assert tf.function(policy.sample)().shape == leading


@pytest.mark.parametrize("forbidden", [-np.inf, -1e30])
def test_a_forbidden_action_leaves_entropy_and_gradients_finite(forbidden):
    """One of three actions is forbidden and two are equal: entropy log 2, gradient 0."""
    logits = tf.Variable([[0.0, forbidden, 0.0]])
    with tf.GradientTape(persistent=True) as tape:
        policy = Categorical(tf.convert_to_tensor(logits))
        entropy, log_prob = policy.entropy(), policy.log_prob([0])
    np.testing.assert_allclose(entropy, [np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(log_prob, [-np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(entropy, logits), [[0, 0, 0]], atol=1e-7)
    np.testing.assert_allclose(tape.gradient(log_prob, logits), [[0.5, 0, -0.5]], atol=1e-7)
    assert set(np.unique(Categorical(tf.repeat(logits, 200, axis=0)).sample())) == {0, 2}


def test_the_entropys_gradient_is_the_definitions():
    """dH/dz_i = -p_i (log p_i + H)."""
    logits = tf.Variable([0.5, -1.0, 2.0])
    with tf.GradientTape() as tape:
        entropy = Categorical(tf.convert_to_tensor(logits)).entropy()
    probs = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum()
    expected = -probs * (np.log(probs) + entropy.numpy())
    np.testing.assert_allclose(tape.gradient(entropy, logits), expected, rtol=1e-5)
