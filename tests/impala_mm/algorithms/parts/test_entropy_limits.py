"""The limits of a policy's entropy against searches by SciPy, and the refusal of targets."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, optimize, stats

from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.parts.action_policies import entropy_limits, why_unreachable
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec

FREE = Box((2,), (-np.inf,) * 2, (np.inf,) * 2)
BOUNDED = Box((1,), (-2.0,), (3.0,))
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
    least, most = entropy_limits(ActionSpec(FREE), "clipped")
    assert least == pytest.approx(2 * stats.norm(0, LEAST_DEVIATION).entropy(), abs=1e-3)
    assert most == math.inf
    assert entropy_limits(ActionSpec(BOUNDED), "normal")[1] == math.inf
    one_bound = Box((1,), (500.0,), (np.inf,))
    least, most = entropy_limits(ActionSpec(one_bound), "clipped")
    assert least == pytest.approx(stats.norm(0, LEAST_DEVIATION).entropy(), abs=1e-3)
    assert most == math.inf


def test_that_of_clipped_numbers_is_the_largest_that_scipy_finds():
    found = optimize.minimize(lambda x: -_clipped_entropy(x[0], np.exp(x[1])), [0.3, 0.0])
    least, most = entropy_limits(ActionSpec(BOUNDED), "clipped")
    assert most == pytest.approx(-found.fun, abs=2e-3)
    assert most < math.log(4)  # that of the most even distribution of numbers and bounds
    assert least == pytest.approx(stats.norm(0, LEAST_DEVIATION).entropy(), abs=1e-3)


def test_no_policy_has_less_or_more():
    rng = np.random.default_rng(0)
    for box in action_policies.BOX_POLICIES:
        parts = {"a": BOUNDED, "b": (Discrete(3), MultiBinary((2,)))}
        spec = ActionSpec(parts)
        chosen = action_policies.choose(spec, box)
        parameters = rng.normal(0, 6, (5000, chosen.num_parameters))
        entropies = chosen.make(tf.constant(parameters)).entropy().numpy()
        least, most = entropy_limits(spec, box)
        assert least - 0.005 <= entropies.min() < entropies.max() <= most + 0.005


def test_a_tanh_policy_is_at_most_even():
    """The density of numbers from -1 to 1 has at most the entropy log 2."""
    least, most = entropy_limits(ActionSpec(BOUNDED), "tanh")
    assert math.log(2) - 0.05 < most < math.log(2) + 0.005
    assert least < -10


@pytest.mark.parametrize(
    ("target", "parts", "reason"),
    [
        (1.387, Discrete(4), ""),
        (0.0, Discrete(4), ""),
        (-3.0, BOUNDED, "no policy of Box([1], -2 to 3) has less than -2.493 nats of entropy"),
        (1.4, Discrete(4), "Discrete(4) has more than 1.386 nats of entropy: give a smaller"),
        (-0.1, Discrete(4), "Discrete(4) has less than 0 nats of entropy: give a larger"),
        (1e6, FREE, ""),
        (3.0, (Discrete(2), MultiBinary((2,))), "has more than 2.079 nats"),
    ],
)
def test_a_target_that_no_policy_reaches_is_named(target, parts, reason):
    found = why_unreachable(target, ActionSpec(parts), "clipped")
    assert (reason in found) if reason else not found
