"""Distributions over choices and decisions against SciPy, or sums written out, in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from impala_mm.algorithms.parts.distributions import (
    Bernoulli,
    Categorical,
    Joint,
    MultiCategorical,
    Shaped,
)


@settings(max_examples=20, deadline=None)
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


def _sums(logits, n):
    """Return the log-probabilities of each of K choices, [..., n_k]."""
    parts = np.split(logits, np.cumsum(n)[:-1], -1)
    return [special.log_softmax(part, -1) for part in parts]


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    leading=st.lists(st.integers(1, 3), max_size=2),
    n=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_several_choices_are_the_sum_of_each(seed, leading, n, spread):
    rng = np.random.default_rng(seed)
    logits, others = rng.normal(0, spread, (2, *leading, sum(n)))
    chosen = rng.integers(n, size=(*leading, len(n)))
    policy, other = (MultiCategorical(tf.constant(x), tuple(n)) for x in (logits, others))
    each, theirs = _sums(logits, n), _sums(others, n)
    of_action = sum(
        np.take_along_axis(log_probs, chosen[..., k, None], -1)[..., 0]
        for k, log_probs in enumerate(each)
    )
    entropy = sum(stats.entropy(np.exp(log_probs), axis=-1) for log_probs in each)
    kl = sum(np.sum(np.exp(p) * (p - q), -1) for p, q in zip(each, theirs, strict=True))
    np.testing.assert_allclose(policy.log_prob(chosen), of_action, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(policy.kl(other), kl, rtol=1e-9, atol=1e-9)
    modes = np.stack([np.argmax(log_probs, -1) for log_probs in each], -1)
    np.testing.assert_array_equal(policy.mode(), modes)
    drawn = policy.sample()
    assert drawn.shape == (*leading, len(n))
    assert (drawn.numpy() < n).all()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    leading=st.lists(st.integers(1, 3), max_size=2),
    size=st.integers(1, 4),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_decisions_are_scipys_bernoulli(seed, leading, size, spread):
    rng = np.random.default_rng(seed)
    logits, others = rng.normal(0, spread, (2, *leading, size))
    chosen = rng.integers(2, size=logits.shape)
    policy, other = Bernoulli(tf.constant(logits)), Bernoulli(tf.constant(others))
    yes, no = special.log_expit(logits), special.log_expit(-logits)
    of_action = np.where(chosen, yes, no).sum(-1)
    entropy = stats.bernoulli(special.expit(logits)).entropy().sum(-1)
    kl = np.exp(yes) * (yes - special.log_expit(others))
    kl += np.exp(no) * (no - special.log_expit(-others))
    np.testing.assert_allclose(policy.log_prob(chosen), of_action, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(policy.kl(other), kl.sum(-1), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(policy.mode(), logits > 0)


def test_decisions_come_as_often_as_they_are_likely():
    tf.random.set_seed(1)
    drawn = Bernoulli(tf.fill([20_000, 2], tf.constant(np.log(3.0), tf.float32))).sample()
    assert drawn.dtype == tf.int32
    np.testing.assert_allclose(tf.reduce_mean(tf.cast(drawn, tf.float32), 0), [0.75] * 2, atol=0.02)


def test_a_nest_is_the_sum_of_its_parts():
    rng = np.random.default_rng(0)
    logits, yes = (tf.constant(rng.normal(size=(2, 5, n)), tf.float32) for n in (3, 4))
    parts = {"b": (Categorical(logits),), "a": Shaped(Bernoulli(yes), (2, 2))}
    joint = Joint(parts)
    action = joint.sample()
    assert action["a"].shape == (2, 5, 2, 2)
    assert action["b"][0].shape == (2, 5)
    expected = Categorical(logits).log_prob(action["b"][0])
    expected += Bernoulli(yes).log_prob(tf.reshape(action["a"], [2, 5, 4]))
    np.testing.assert_allclose(joint.log_prob(action), expected, rtol=1e-6)
    entropies = Categorical(logits).entropy() + Bernoulli(yes).entropy()
    np.testing.assert_allclose(joint.entropy(), entropies, rtol=1e-6)
    np.testing.assert_allclose(joint.kl(joint), np.zeros([2, 5]), atol=1e-6)
    assert joint.mode()["a"].shape == (2, 5, 2, 2)
