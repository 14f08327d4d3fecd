"""IMPALA's loss: an episode's end calculated by hand, masks, weights and reductions."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from impala_by_numpy import impala_loss

from impala_mm.algorithms.impala import algorithm as impala
from impala_mm.algorithms.parts import losses

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


def episode_end(terminated):
    """Return an unroll on policy with two equally likely actions; o_2 ends an episode.

    entry        0     1     2 (end)   3 (reset)   4
    reward       -     1     2         99 ignored  3
    V            4     6     8         10          12
    """
    column = np.ones([5, 1], np.float32)
    return {
        "parameters": np.zeros([5, 1, 2], np.float32),
        "values": column * np.float32([[4], [6], [8], [10], [12]]),
        "actions": np.zeros([5, 1], np.int32),
        "rewards": column * np.float32([[0], [1], [2], [99], [3]]),
        "terminated": np.array([[0], [0], [terminated], [0], [0]], bool),
        "first": np.array([[0], [0], [0], [1], [0]], bool),
        "behaviour_log_probs": column * np.float32(np.log(0.5)),
        "weight": np.ones([1], np.float32),
    }


@pytest.mark.parametrize(
    ("terminated", "errors", "advantages"),
    [
        # Discounts 0.5, 0, masked, 0.5. Targets: 3 + 6 = 9; V = 8; 2; 1 + 0.5 x 2 = 2.
        (True, [2 - 4, 2 - 6, 9 - 10], [1 + 0.5 * 2 - 4, 2 - 6, 9 - 10]),
        # Truncated, the last observation's 8 is the bootstrap: 2 + 0.5 x 8 = 6; 1 + 0.5 x 6 = 4.
        (False, [4 - 4, 6 - 6, 9 - 10], [1 + 0.5 * 6 - 4, 2 + 0.5 * 8 - 6, 9 - 10]),
    ],
    ids=["terminated", "truncated"],
)
def test_an_episodes_end_and_the_reset_after_it_by_hand(terminated, errors, advantages):
    result, (by_policy, by_baseline) = loss_and_gradients(
        episode_end(terminated), of=("policy", "baseline")
    )
    np.testing.assert_allclose(result.policy, np.log(2) * np.sum(advantages), rtol=1e-5)
    np.testing.assert_allclose(result.baseline, 0.5 * np.sum(np.square(errors)), rtol=1e-5)
    np.testing.assert_allclose(result.entropy, -3 * np.log(2), rtol=1e-5)  # three steps, not four
    np.testing.assert_allclose(
        result.total, result.policy + 0.5 * result.baseline + 0.01 * result.entropy, rtol=1e-6
    )
    assert result.shift == 0  # on policy
    # d/dV_t of 0.5 (vs_t - V_t)^2 is V_t - vs_t; o_2's step is masked, and o_4 is the bootstrap.
    by_value = by_baseline[1].numpy()[:, 0]
    np.testing.assert_allclose(by_value, [-errors[0], -errors[1], 0, -errors[2], 0], atol=1e-5)
    # d/dlogit_a of -log pi(a) x advantage, at pi(a) = 0.5, is -0.5 x advantage.
    by_logit = by_policy[0].numpy()[:, 0, 0]
    expected = [-0.5 * advantages[0], -0.5 * advantages[1], 0, -0.5 * advantages[2], 0]
    np.testing.assert_allclose(by_logit, expected, atol=1e-5)


def test_the_shift_is_what_the_actions_lost_in_log_probability():
    """Three actions had probability 0.8 and now have 0.5; resets are not counted."""
    inputs = episode_end(terminated=False)
    inputs["behaviour_log_probs"][:] = np.log(0.8)
    result, (by_shift,) = loss_and_gradients(inputs, of=("shift",))
    np.testing.assert_allclose(result.shift, 3 * np.log(0.8 / 0.5), rtol=1e-5)
    assert all(np.all(g.numpy() == 0) for g in by_shift)


def test_a_lost_life_ends_the_return_and_masks_nothing():
    """This is the terminated episode above with a live next step: its reward is 1, not 99."""
    inputs = episode_end(terminated=True)
    inputs["first"][3] = False
    inputs["rewards"][3] = 1
    result, _ = loss_and_gradients(inputs)
    errors = [2 - 4, 2 - 6, (1 + 0.5 * 9) - 8, 9 - 10]  # at o_2, the target is r_3 + 0.5 x 9
    np.testing.assert_allclose(result.baseline, 0.5 * np.sum(np.square(errors)), rtol=1e-5)
    np.testing.assert_allclose(result.entropy, -4 * np.log(2), rtol=1e-5)


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


def test_a_column_counts_as_its_weight_says():
    inputs = unrolls(1, 4, 2)
    each = []
    for b in range(2):
        one = {n: a[[b]] if n == "weight" else a[:, [b]] for n, a in inputs.items()}
        each.append(np.array(impala_loss(**one, **COSTS)))
    inputs["weight"] = np.float32([0.25, 3.0])
    got = impala_loss(**inputs, **COSTS)
    np.testing.assert_allclose(got, 0.25 * each[0] + 3 * each[1], rtol=1e-5)


def test_the_mean_divides_by_the_constants_t_and_b():
    """The divisor is 5 x 4, although far fewer steps are live."""
    inputs = unrolls(2, 5, 4, resets=0.6)
    inputs["weight"][0] = 0
    total, mean = (impala_loss(**inputs, **COSTS, reduction=r) for r in losses.REDUCTIONS)
    np.testing.assert_allclose(np.array(total) / 20, mean, rtol=1e-6)


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


def test_thresholds_and_lambda_reach_v_trace():
    """For one step of pi = 0.5, mu = 0.125, so rho = 4, V = 0, r = 1: advantage min(4, bar)."""
    inputs = {
        "parameters": np.zeros([2, 1, 2], np.float32),
        "values": np.zeros([2, 1], np.float32),
        "actions": np.zeros([2, 1], np.int32),
        "rewards": np.ones([2, 1], np.float32),
        "terminated": np.zeros([2, 1], bool),
        "first": np.zeros([2, 1], bool),
        "behaviour_log_probs": np.full([2, 1], np.log(0.125), np.float32),
        "weight": np.ones([1], np.float32),
    }
    result = impala_loss(**inputs, **COSTS, clip_rho_threshold=3.0, clip_pg_rho_threshold=None)
    np.testing.assert_allclose(result.policy, np.log(2) * 4, rtol=1e-5)
    np.testing.assert_allclose(result.baseline, 0.5 * 3**2, rtol=1e-5)
    # Two such steps, discount 0.5: vs_0 = 1 + 0.5 x c x 1, where c = lambda x min(4, c_bar).
    longer = {n: a if n == "weight" else a[[0, 1, 1]] for n, a in inputs.items()}
    result = impala_loss(**longer, **COSTS, clip_c_threshold=2.0, lambda_=0.5)
    np.testing.assert_allclose(result.baseline, 0.5 * (1.5**2 + 1**2), rtol=1e-5)


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


def test_advantages_are_scaled_before_they_are_weighed_by_importance():
    """By NumPy, in float64, for one step of each column and V-trace's lambda 0."""
    inputs = unrolls(8, 1, 50, resets=0)
    inputs["behaviour_log_probs"] *= np.float32(5)
    logits, actions = inputs["parameters"][0].astype(float), inputs["actions"][1]
    chosen = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = chosen[np.arange(50), actions]
    weights = np.minimum(np.exp(chosen - inputs["behaviour_log_probs"][1]), 1.0)
    values, rewards = inputs["values"].astype(float), inputs["rewards"][1].astype(float)
    advantages = rewards + COSTS["discounting"] * values[1] - values[0]
    scaled = (advantages - advantages.mean()) / advantages.std()
    assert weights.min() < 0.1
    result = impala_loss(**inputs, **COSTS, scale_advantages=True)
    assert float(result.policy) == pytest.approx(-(chosen * weights * scaled).sum(), rel=1e-4)
