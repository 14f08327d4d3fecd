"""The distribution for each action space, its head, and the limits of its entropy."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, optimize, stats

from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.parts.action_policies import entropy_limits, why_unreachable
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


def test_a_normal_policys_samples_are_not_clipped_and_its_mode_is_the_mean():
    made = action_policies.choose(ActionSpec(BOUNDED), "normal").make(
        tf.constant([[9.0, -30.0, 0, 0]])
    )
    np.testing.assert_array_equal(made.mode(), [[9, -30]])
    drawn = action_policies.draw(made, tf.ones([1]))
    assert np.abs(drawn.numpy() - [[9, -30]]).max() < 6 * 0.6
    np.testing.assert_array_equal(action_policies.draw(made, tf.zeros([1])), [[9, -30]])


OPEN = Box((2,), (-np.inf,) * 2, (np.inf,) * 2)
WIDE = Box((1,), (-2.0,), (3.0,))
LEAST_DEVIATION = 0.02


def _clipped_entropy(mean, deviation):
    """Return the entropy of a normal distribution clipped to [-1, 1], by integration."""
    normal = stats.norm(mean, deviation)
    tails = np.array([normal.cdf(-1), normal.sf(1)])
    inner, _ = integrate.quad(lambda x: -normal.pdf(x) * normal.logpdf(x), -1, 1)
    return inner - np.sum(tails * np.log(np.maximum(tails, 1e-300)))


def test_that_of_choices_is_the_logarithm_of_their_number():
    parts = (Discrete(4), {"a": MultiDiscrete((2,), (3, 5), (0, 0)), "b": MultiBinary((2, 2))})
    least, most = entropy_limits(ActionSpec(parts), "clipped")
    assert least == 0
    assert most == pytest.approx(math.log(4 * 3 * 5 * 2**4))


def test_that_of_numbers_without_bounds_has_a_least_and_no_largest():
    least, most = entropy_limits(ActionSpec(OPEN), "clipped")
    assert least == pytest.approx(2 * stats.norm(0, LEAST_DEVIATION).entropy(), abs=1e-3)
    assert most == math.inf
    assert entropy_limits(ActionSpec(WIDE), "normal")[1] == math.inf
    one_bound = Box((1,), (500.0,), (np.inf,))
    least, most = entropy_limits(ActionSpec(one_bound), "clipped")
    assert least == pytest.approx(stats.norm(0, LEAST_DEVIATION).entropy(), abs=1e-3)
    assert most == math.inf


def test_that_of_clipped_numbers_is_the_largest_that_scipy_finds():
    found = optimize.minimize(lambda x: -_clipped_entropy(x[0], np.exp(x[1])), [0.3, 0.0])
    least, most = entropy_limits(ActionSpec(WIDE), "clipped")
    assert most == pytest.approx(-found.fun, abs=2e-3)
    assert most < math.log(4)  # that of the most even distribution of numbers and bounds
    assert least == pytest.approx(stats.norm(0, LEAST_DEVIATION).entropy(), abs=1e-3)


def test_no_policy_has_less_or_more():
    rng = np.random.default_rng(0)
    for box in action_policies.BOX_POLICIES:
        parts = {"a": WIDE, "b": (Discrete(3), MultiBinary((2,)))}
        spec = ActionSpec(parts)
        chosen = action_policies.choose(spec, box)
        parameters = rng.normal(0, 6, (5000, chosen.num_parameters))
        entropies = chosen.make(tf.constant(parameters)).entropy().numpy()
        least, most = entropy_limits(spec, box)
        assert least - 0.005 <= entropies.min() < entropies.max() <= most + 0.005


def test_a_tanh_policy_is_at_most_even():
    """The density of numbers from -1 to 1 has at most the entropy log 2."""
    least, most = entropy_limits(ActionSpec(WIDE), "tanh")
    assert math.log(2) - 0.05 < most < math.log(2) + 0.005
    assert least == -math.inf


@pytest.mark.parametrize(
    ("target", "parts", "reason"),
    [
        (1.387, Discrete(4), ""),
        (0.0, Discrete(4), ""),
        (-3.0, WIDE, "no policy of Box([1], -2 to 3) has less than -2.493 nats of entropy"),
        (1.4, Discrete(4), "Discrete(4) has more than 1.386 nats of entropy: give a smaller"),
        (-0.1, Discrete(4), "Discrete(4) has less than 0 nats of entropy: give a larger"),
        (1e6, OPEN, ""),
        (3.0, (Discrete(2), MultiBinary((2,))), "has more than 2.079 nats"),
    ],
)
def test_a_target_that_no_policy_reaches_is_named(target, parts, reason):
    found = why_unreachable(target, ActionSpec(parts), "clipped")
    assert (reason in found) if reason else not found
