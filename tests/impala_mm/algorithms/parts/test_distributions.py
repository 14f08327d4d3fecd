"""Policies over choices and numbers against SciPy, sums and central differences, in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.parts.distributions import Bernoulli, Categorical
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec

CHOICES = {
    "discrete": Discrete(5),
    "even": MultiDiscrete((2,), (3, 3), (0, 0)),
    "uneven": MultiDiscrete((2, 2), (2, 4, 1, 3), (0, 0, 0, 0)),
    "decisions": MultiBinary((2, 2)),
    "nest": {"a": (Discrete(3),), "b": MultiDiscrete((2,), (3, 2), (0, 0)), "c": MultiBinary((2,))},
}
NUMBERS = {
    "free": Box((2,), (-np.inf,) * 2, (np.inf,) * 2),
    "bounded": Box((2,), (-1.0, 0.0), (1.0, 5.0)),
    "one bound": Box((2,), (0.0, -np.inf), (np.inf, 0.5)),
}


def _ns(actions):
    """Return the numbers of choices of everything that is chosen at once."""
    return [n for part in actions.leaves for n in part.choices]


def _log_probs(actions, parameters, masks):
    """Return the log-probabilities of everything that is chosen at once, [..., n] each."""
    given, found = 0, []
    for part in actions.leaves:
        for n in part.choices:
            if isinstance(part, MultiBinary):  # the logit of 1 against a logit of 0
                one = parameters[..., given : given + 1]
                found.append(np.concatenate([np.zeros_like(one), one], -1))
                given += 1
            else:
                found.append(parameters[..., given : given + n])
                given += n
    each = np.split(masks, np.cumsum(_ns(actions))[:-1], -1)
    each = [m | ~m.any(-1, keepdims=True) for m in each]  # if nothing is allowed, all is
    return [
        special.log_softmax(np.where(m, x, -np.inf), -1) for x, m in zip(found, each, strict=True)
    ]


def _nested(actions, masks):
    sizes = [sum(part.choices) for part in actions.leaves]
    return actions.pack(np.split(masks, np.cumsum(sizes)[:-1], -1))


def _flat(actions, drawn):
    """Return what was chosen, [..., number of choices at once]."""
    leading = tf.nest.flatten(drawn)[0].shape[:2]
    return np.concatenate([np.reshape(x, [*leading, -1]) for x in tf.nest.flatten(drawn)], -1)


@pytest.mark.parametrize("kind", CHOICES)
@settings(max_examples=10, deadline=None)
@given(
    masked=st.booleans(),
    spread=st.sampled_from([0.1, 2.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_policies_over_choices_are_those_of_scipy(kind, masked, spread, seed):
    rng, actions = np.random.default_rng(seed), ActionSpec(CHOICES[kind])
    chosen = action_policies.choose(actions)
    mine, theirs = rng.normal(0, spread, (2, 4, 3, chosen.num_parameters))
    masks = rng.random((4, 3, sum(_ns(actions)))) < 0.6 if masked else None
    nested = () if masks is None else _nested(actions, masks)
    masks = np.ones((4, 3, sum(_ns(actions))), bool) if masks is None else masks
    policy, other = (chosen.make(tf.constant(x), nested) for x in (mine, theirs))
    p, q = (_log_probs(actions, x, masks) for x in (mine, theirs))
    drawn, mode = policy.sample(), policy.mode()
    log_prob = 0.0
    for k, (log_probs, one, best) in enumerate(
        zip(p, *(np.moveaxis(_flat(actions, x), -1, 0) for x in (drawn, mode)), strict=True)
    ):
        of_drawn = np.take_along_axis(log_probs, one[..., None], -1)[..., 0]
        assert np.isfinite(of_drawn).all(), f"choice {k} is forbidden"
        log_prob += of_drawn
        np.testing.assert_array_equal(best, log_probs.argmax(-1))
    np.testing.assert_allclose(policy.log_prob(drawn), log_prob, rtol=1e-6, atol=1e-9)
    kl = sum(special.rel_entr(np.exp(a), np.exp(b)).sum(-1) for a, b in zip(p, q, strict=True))
    np.testing.assert_allclose(policy.kl(other), kl, rtol=1e-6, atol=1e-9)
    entropy = sum(special.entr(np.exp(a)).sum(-1) for a in p)
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-6, atol=1e-9)


def _check_gradient(compute, parameters):
    """Assert that the gradient is the one by central differences, in float64."""
    given = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(given)
        total = tf.reduce_sum(compute(given))
    found = tape.gradient(total, given).numpy()
    assert np.isfinite(found).all()
    moves = 1e-5 * np.eye(parameters.size).reshape(-1, *parameters.shape)
    moved = compute(tf.constant(parameters + np.stack([moves, -moves]))).numpy()
    up, down = moved.reshape(2, parameters.size, -1).sum(-1)
    np.testing.assert_allclose(found.ravel(), (up - down) / 2e-5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "box", "masked"),
    [
        *((kind, "clipped", masked) for kind in ("uneven", "nest") for masked in (False, True)),
        ("discrete", "clipped", True),
        *((kind, box, False) for kind in NUMBERS for box in action_policies.BOX_POLICIES),
    ],
)
def test_gradients_of_divergences_are_those_by_differences(kind, box, masked):
    rng, actions = np.random.default_rng(0), ActionSpec((CHOICES | NUMBERS)[kind])
    chosen = action_policies.choose(actions, box)
    mine, theirs = rng.normal(0, 1.2, (2, 2, chosen.num_parameters))
    nested = _nested(actions, rng.random((2, sum(_ns(actions)))) < 0.6) if masked else ()

    def other(x):
        return chosen.make(tf.broadcast_to(theirs, x.shape), nested)

    _check_gradient(lambda x: chosen.make(x, nested).kl(other(x)), mine)
    _check_gradient(lambda x: other(x).kl(chosen.make(x, nested)), mine)
    _check_gradient(lambda x: chosen.make(x, nested).entropy(), mine)
    if kind in NUMBERS:  # of a constant action, also where it is beyond the bounds
        drawn = chosen.make(tf.constant(mine)).sample()
        _check_gradient(lambda x: chosen.make(x).log_prob(drawn), mine)


@pytest.mark.parametrize("box", action_policies.BOX_POLICIES)
@pytest.mark.parametrize("kind", NUMBERS)
def test_the_divergence_of_numbers_is_the_expected_difference_of_log_probabilities(kind, box):
    """Sampled 50,000 times; the standard error of the mean is the yardstick."""
    tf.random.set_seed(3)
    chosen = action_policies.choose(ActionSpec(NUMBERS[kind]), box)
    mine = tf.constant([[0.4, -0.9, 0.3, 0.1]], tf.float64)
    theirs = tf.constant([[0.1, -0.2, 0.8, 0.2]], tf.float64)
    many = tf.repeat(mine, 50_000, 0)
    drawn = chosen.make(many).sample()
    gaps = chosen.make(many).log_prob(drawn) - chosen.make(theirs).log_prob(drawn)
    error = np.std(gaps) / np.sqrt(len(gaps))
    kl = float(chosen.make(mine).kl(chosen.make(theirs))[0])
    assert abs(np.mean(gaps) - kl) < 4 * error
    assert kl > 0.05


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from([*CHOICES, *NUMBERS]),
    box=st.sampled_from(action_policies.BOX_POLICIES),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_in_float32_no_divergence_is_negative_or_infinite(kind, box, spread, seed):
    rng, actions = np.random.default_rng(seed), ActionSpec((CHOICES | NUMBERS)[kind])
    chosen = action_policies.choose(actions, box)
    mine, theirs = rng.normal(0, spread, (2, 50, chosen.num_parameters)).astype("f")
    with tf.GradientTape() as tape:
        given = tf.constant(mine)
        tape.watch(given)
        policy, other = chosen.make(given), chosen.make(tf.constant(theirs))
        forwards, backwards = policy.kl(other), other.kl(policy)
    for divergence in (forwards, backwards):
        assert np.isfinite(divergence).all()
        assert (divergence.numpy() >= -2e-4 * (1 + np.abs(divergence))).all()
    np.testing.assert_allclose(policy.kl(policy), np.zeros(50), atol=1e-5)
    assert np.isfinite(tape.gradient([forwards, backwards], given)).all()


def test_samples_come_as_often_as_they_are_likely():
    """In 20,000 draws each share has a deviation below 0.0035."""
    tf.random.set_seed(1)
    probs = np.float32([0.1, 0.6, 0.3])
    drawn = Categorical(tf.broadcast_to(tf.math.log(probs), [100, 200, 3])).sample()
    assert (drawn.shape, drawn.dtype) == ((100, 200), tf.int32)
    np.testing.assert_allclose(np.bincount(np.ravel(drawn)) / 20_000, probs, atol=0.015)
    drawn = Bernoulli(tf.fill([20_000, 2], tf.constant(np.log(3.0), tf.float32))).sample()
    assert drawn.dtype == tf.int32
    np.testing.assert_allclose(np.mean(drawn, 0), [0.75] * 2, atol=0.015)


@pytest.mark.parametrize("forbidden", [-np.inf, -1e30])
def test_a_forbidden_action_leaves_entropy_and_gradients_finite(forbidden):
    """One of three actions is forbidden and two are equal: entropy log 2, gradient 0."""
    logits = tf.Variable([[0.0, forbidden, 0.0]])
    with tf.GradientTape(persistent=True) as tape:
        policy = Categorical(tf.convert_to_tensor(logits))
        entropy, log_prob = policy.entropy(), policy.log_prob([0])
    np.testing.assert_allclose([entropy, -log_prob], np.full([2, 1], np.log(2)), rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(entropy, logits), [[0, 0, 0]], atol=1e-7)
    np.testing.assert_allclose(tape.gradient(log_prob, logits), [[0.5, 0, -0.5]], atol=1e-7)
    assert set(np.unique(Categorical(tf.repeat(logits, 200, axis=0)).sample())) == {0, 2}
