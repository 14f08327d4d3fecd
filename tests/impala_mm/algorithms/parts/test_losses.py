"""IMPALA's loss: an episode's end calculated by hand, masks, weights and reductions."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from impala_by_numpy import impala_loss
from scipy import special

from impala_mm.algorithms.impala import algorithm as impala
from impala_mm.algorithms.parts import losses
from tests.impala_mm.algorithms.parts.test_vtrace import paper

COSTS = {"discounting": 0.5, "baseline_cost": 0.5, "entropy_cost": 0.01}


def unrolls(seed, steps, batch, num_actions=3, resets=0.2):
    """Return arguments of `impala_loss`: random outputs, and entries with ends and resets."""
    rng = np.random.default_rng(seed)
    shape = (steps + 1, batch)
    return {
        "parameters": rng.normal(0, 1, (*shape, num_actions)).astype(np.float32),
        "values": rng.normal(0, 1, shape).astype(np.float32),
        "actions": rng.integers(0, num_actions, shape).astype(np.int32),
        "rewards": rng.normal(0, 1, shape).astype(np.float32),
        "terminated": rng.random(shape) < resets,
        "first": rng.random(shape) < resets,
        "behaviour_log_probs": -rng.exponential(1, shape).astype(np.float32),
        "weight": np.ones(batch, np.float32),
    }


def loss_and_gradients(inputs, of=("total",)):
    """Return the Losses, and the gradients of those in `of`, for logits and values."""
    logits, values = tf.Variable(inputs["parameters"]), tf.Variable(inputs["values"])
    with tf.GradientTape(persistent=True) as tape:
        outputs = {"parameters": tf.identity(logits), "values": tf.identity(values)}
        result = impala_loss(**(inputs | outputs), **COSTS)
    gradients = [
        tape.gradient(getattr(result, name), [logits, values], unconnected_gradients="zero")
        for name in of
    ]
    return result, gradients


def assert_equal(one, other):
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        assert np.all(np.isfinite(a))
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("abs_one", [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0]),
        # 5 tanh(r / 5), times 0.3 if r < 0: tanh 20 = 1, tanh 0.4 = 0.3799490, tanh 0.1 = 0.0996680
        ("soft_asymmetric", [-1.5, -0.5699235, -0.149502, 0.0, 0.49834, 1.899745, 5.0]),
        ("none", [-100.0, -2.0, -0.5, 0.0, 0.5, 2.0, 100.0]),
    ],
)
def test_rewards_are_clipped_as_named(how, expected):
    raw = tf.constant([-100.0, -2.0, -0.5, 0.0, 0.5, 2.0, 100.0])
    np.testing.assert_allclose(losses.clip_reward(raw, how), expected, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 8),
    batch=st.integers(2, 5),
    reduction=st.sampled_from(losses.REDUCTIONS),
    scaled=st.booleans(),
    bars=st.tuples(*[st.sampled_from([0.5, 1.0, 3.0])] * 3),
    lambda_=st.sampled_from([0.5, 1.0]),
)
def test_losses_and_gradients_are_those_of_the_definition(
    seed, steps, batch, reduction, scaled, bars, lambda_
):
    """Advantages are scaled before they are weighed by importance."""
    inputs = unrolls(seed, steps, batch)
    inputs["weight"] = np.random.default_rng(seed).choice([0.0, 0.25, 1.0, 3.0], batch).astype("f")
    first, terminated, weight = (inputs[x] for x in ("first", "terminated", "weight"))
    rewards, values = np.float64(inputs["rewards"]), np.float64(inputs["values"])
    mu = np.float64(inputs["behaviour_log_probs"])
    live = ~first[1:] & (weight > 0)
    values = np.where(weight > 0, values, 0)
    log_probs = special.log_softmax(np.float64(inputs["parameters"][:-1]), -1)
    one_hot = np.eye(3)[inputs["actions"][1:]]
    taken = (log_probs * one_hot).sum(-1)
    ratios = np.where(live, taken - mu[1:], 0)
    discounts = np.where(live & ~terminated[1:], COSTS["discounting"], 0)
    steps_rewards = np.where(live, rewards[1:], values[:-1])
    rho_bar, pg_bar, c_bar = bars
    of_steps = ratios, discounts, steps_rewards, values[:-1], values[-1]
    targets, _ = paper(*of_steps, rho_bar, 1.0, c_bar, lambda_)
    following = np.concatenate([targets[1:], values[-1:]])
    advantages = steps_rewards + discounts * following - values[:-1]
    if scaled and live.any():
        deviation = max(advantages[live].std(), 1e-30)
        assume(deviation > 1e-3)
        advantages = (advantages - advantages[live].mean()) / deviation
    weights = np.minimum(np.exp(ratios), pg_bar)
    factors = np.where(live, weight, 0) / (live.size if reduction == "mean" else 1)
    entropies, errors = special.entr(np.exp(log_probs)).sum(-1), targets - values[:-1]
    terms = -taken * weights * advantages, errors**2 / 2, -entropies, mu[1:] - taken
    policy, baseline, entropy, shift = ((factors * x).sum() for x in terms)

    logits, given = tf.Variable(inputs["parameters"]), tf.Variable(inputs["values"])
    with tf.GradientTape() as tape:
        found = impala_loss(
            **inputs | {"parameters": logits + 0.0, "values": given + 0.0}, **COSTS,
            reduction=reduction, scale_advantages=scaled, lambda_=lambda_,
            clip_rho_threshold=rho_bar, clip_pg_rho_threshold=pg_bar, clip_c_threshold=c_bar,
        )  # fmt: skip
    expected = [policy + 0.5 * baseline + 0.01 * entropy, policy, baseline, entropy, shift]
    np.testing.assert_allclose(found[:5], expected, rtol=1e-3, atol=1e-4)
    of_logits, of_values = tape.gradient(found.total, [logits, given])
    probs = np.exp(log_probs)
    slopes = -(weights * advantages)[..., None] * (one_hot - probs)
    slopes += 0.01 * probs * (log_probs + entropies[..., None])
    np.testing.assert_allclose(of_logits[:-1], factors[..., None] * slopes, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(of_values[:-1], -0.5 * factors * errors, rtol=1e-3, atol=1e-4)
    assert not np.any(of_logits[-1])
    assert not np.any(of_values[-1])


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 8),
    batch=st.integers(1, 3),
    reward=st.sampled_from([np.nan, np.inf, 1e30, 0.0]),
    log_prob=st.sampled_from([-np.inf, np.nan, -1e30, 0.0]),
    action=st.sampled_from([0, 2, -1, 1000]),
)
def test_nothing_that_stands_at_a_masked_place_matters(
    seed, steps, batch, reward, log_prob, action
):
    inputs = unrolls(seed, steps, batch, resets=0.5)
    before = loss_and_gradients(inputs)
    masked = inputs["first"].copy()
    masked[0] = True  # what led to entry 0 was judged with the unroll before
    changed = {
        "rewards": np.where(masked, np.float32(reward), inputs["rewards"]),
        "behaviour_log_probs": np.where(
            masked, np.float32(log_prob), inputs["behaviour_log_probs"]
        ),
        "actions": np.where(masked, np.int32(action), inputs["actions"]),
        "terminated": np.where(masked, ~inputs["terminated"], inputs["terminated"]),
    }
    assert_equal(before, loss_and_gradients(inputs | changed))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 6), garbage=st.integers(0, 2))
def test_a_column_of_weight_0_may_hold_anything_and_adds_exactly_nothing(seed, steps, garbage):
    inputs = unrolls(seed, steps, 3)
    inputs["weight"][1] = 0
    clean = loss_and_gradients(inputs)
    number = [np.nan, np.inf, -np.inf][garbage]
    dirty = {name: array.copy() for name, array in inputs.items()}
    for name in ("parameters", "values", "rewards", "behaviour_log_probs"):
        dirty[name][:, 1] = number
    dirty["actions"][:, 1] = -7
    dirty["first"][:, 1] = garbage == 0
    got = loss_and_gradients(dirty)
    assert_equal(clean, got)
    for by_logits, by_values in got[1]:
        assert np.all(by_logits.numpy()[:, 1] == 0)
        assert np.all(by_values.numpy()[:, 1] == 0)
    two = {n: a[[0, 2]] if n == "weight" else a[:, [0, 2]] for n, a in inputs.items()}
    np.testing.assert_allclose(got[0], loss_and_gradients(two)[0], rtol=1e-5, atol=1e-6)


def test_unrolls_without_any_step_of_somebody_give_zero():
    inputs = unrolls(3, 4, 2)
    inputs["first"][:] = True
    result, gradients = loss_and_gradients(inputs)
    assert_equal(result, impala.ImpalaLosses(*np.zeros(6, np.float32)))
    assert all(np.all(g.numpy() == 0) for g in tf.nest.flatten(gradients))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_a_policy_far_from_the_behaviour_gives_finite_losses(size):
    inputs = unrolls(4, 5, 2)
    inputs["parameters"] *= np.float32(size)
    inputs["behaviour_log_probs"][2] = -size
    inputs["behaviour_log_probs"][3] = 0
    result, gradients = loss_and_gradients(inputs)
    assert all(np.all(np.isfinite(x)) for x in tf.nest.flatten((result, gradients)))


def test_scaled_advantages_have_mean_0_and_deviation_1_where_a_step_was_made():
    rng = np.random.default_rng(0)
    x, live = rng.normal(30, 7, (4, 5)).astype(np.float32), rng.random((4, 5)) < 0.6
    x[~live] = np.nan
    found = losses.standardise(tf.constant(x), tf.constant(live)).numpy()
    assert (found[~live] == 0).all()
    np.testing.assert_allclose([found[live].mean(), found[live].std()], [0, 1], atol=1e-5)
    nothing = losses.standardise(tf.constant(x), tf.zeros([4, 5], tf.bool))
    assert (nothing.numpy() == 0).all()


def test_the_moments_of_several_learners_average_to_those_of_all_their_numbers():
    rng = np.random.default_rng(1)
    x, live = rng.normal(-1e4, 3, (5, 6)).astype(np.float32), rng.random((5, 6)) < 0.7
    parts = [(x[:, :1], live[:, :1]), (x[:, 1:], live[:, 1:])]
    both = [losses.moments(tf.constant(values), tf.constant(of)) for values, of in parts]
    mean = losses.Moments(*[(a + b) / 2 for a, b in zip(*both, strict=True)])
    ours = [losses.standardise(tf.constant(values), tf.constant(of), mean) for values, of in parts]
    theirs = losses.standardise(tf.constant(x), tf.constant(live))
    np.testing.assert_allclose(np.concatenate(ours, 1), theirs, rtol=1e-6)
