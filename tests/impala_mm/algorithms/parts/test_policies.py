"""The distribution for each action space, and the head that computes its parameters."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.parts.normals import ClippedNormal, Normal, TanhNormal
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec

BOUNDED = Box((2,), (-1.0, 0.0), (1.0, 5.0))
FREE = Box((2,), (-np.inf, 0.0), (np.inf, np.inf))
NESTED = ActionSpec({"b": (Discrete(3), BOUNDED), "a": MultiBinary((2, 2))})


@pytest.mark.parametrize(
    ("actions", "number", "shared"),
    [
        (ActionSpec(Discrete(5)), 5, 0),
        (ActionSpec(MultiDiscrete((2,), (2, 3), (0, 0))), 5, 0),
        (ActionSpec(MultiBinary((3,))), 3, 0),
        (ActionSpec(BOUNDED), 4, 2),
        (ActionSpec(Box((), (-1.0,), (1.0,))), 2, 1),
        (NESTED, 3 + 4 + 4, 2),
    ],
)
@pytest.mark.parametrize("deviation", action_policies.DEVIATIONS)
def test_the_head_has_the_parameters_and_the_policy_acts(actions, number, shared, deviation):
    tf.random.set_seed(0)
    distribution = action_policies.choose(actions, deviation=deviation)
    assert distribution.num_parameters == number
    head = action_policies.make_head(distribution)
    with tf.GradientTape() as tape:
        parameters = head(tf.random.normal([7, 10]))
        policy = distribution.make(parameters)
        drawn = policy.sample()
        tape.watch(parameters)
        loss = tf.reduce_sum(distribution.make(parameters).log_prob(drawn))
    assert parameters.shape == (7, number)
    for spec, action in zip(tf.nest.flatten(actions.specs), tf.nest.flatten(drawn), strict=True):
        assert (action.shape, action.dtype) == ((7, *spec.shape), spec.dtype)
    assert policy.log_prob(drawn).shape == policy.entropy().shape == (7,)
    assert policy.log_prob(policy.mode()).shape == (7,)
    assert np.isfinite(tape.gradient(loss, parameters)).all()
    equal = [i for i in range(number) if np.ptp(parameters.numpy()[:, i]) == 0]
    assert len(equal) == (shared if deviation == "shared" else 0)


@pytest.mark.parametrize(
    ("box", "actions", "kind"),
    [
        ("tanh", BOUNDED, TanhNormal),
        ("clipped", BOUNDED, ClippedNormal),
        ("tanh", FREE, ClippedNormal),
        ("normal", BOUNDED, Normal),
        ("normal", FREE, Normal),
    ],
)
def test_a_box_has_the_policy_that_was_asked_for_if_its_bounds_allow_it(box, actions, kind):
    made = action_policies.choose(ActionSpec(actions), box).make(tf.zeros([3, 4]))
    assert isinstance(made, kind)
    np.testing.assert_allclose(made.deviation, np.full([3, 2], 0.6), rtol=1e-6)
    if kind is ClippedNormal and actions is FREE:
        assert made.low.tolist() == [-np.inf, 0]


def test_deviations_stay_above_zero():
    made = action_policies.choose(ActionSpec(BOUNDED)).make(tf.constant([[0.0, 0, -1e9, 1e9]]))
    low, high = made.deviation.numpy()[0]
    assert low == pytest.approx(0.02)
    assert np.isfinite(high)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    mean=st.floats(-1e4, 1e4, width=32),
    raw=st.floats(-4, 4, width=16),
    learnt=st.sampled_from(action_policies.DEVIATIONS),
)
def test_the_gradient_of_a_normal_policy_is_the_definitions_wherever_its_mean_is(
    seed, mean, raw, learnt
):
    """Also beyond the bounds, where a clipped policy's vanishes; the action is a constant."""
    distribution = action_policies.choose(NESTED, "normal", learnt)
    rng = np.random.default_rng(seed)
    parameters = rng.normal(0, 1, (5, distribution.num_parameters))
    start = 4  # of the Box's means: a MultiBinary of four decisions is before it, and Discrete's 3
    start += NESTED.leaves[1].n
    parameters[:, start : start + 2] += mean
    parameters[:, start + 2 : start + 4] = raw
    given = tf.constant(parameters)  # float64
    drawn = distribution.make(given).sample()  # outside of the tape
    with tf.GradientTape() as tape:
        tape.watch(given)
        log_probs = distribution.make(given).log_prob(drawn)
    found = tape.gradient(log_probs, given).numpy()[:, start : start + 4]
    deviation = 0.02 + np.logaddexp(0, raw + np.log(np.expm1(0.58)))
    slope = 1 / (1 + np.exp(-(raw + np.log(np.expm1(0.58)))))  # of the softplus
    scores = (drawn["b"][1].numpy() - parameters[:, start : start + 2]) / deviation
    expected = np.concatenate([scores / deviation, (scores**2 - 1) / deviation * slope], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert np.abs(found[:, :2]).min() > 0


def test_a_normal_policys_samples_are_not_clipped_and_its_mode_is_the_mean():
    made = action_policies.choose(ActionSpec(BOUNDED), "normal").make(
        tf.constant([[9.0, -30.0, 0, 0]])
    )
    np.testing.assert_array_equal(made.mode(), [[9, -30]])
    drawn = action_policies.draw(made, tf.ones([1]))
    assert np.abs(drawn.numpy() - [[9, -30]]).max() < 6 * 0.6
    np.testing.assert_array_equal(action_policies.draw(made, tf.zeros([1])), [[9, -30]])
