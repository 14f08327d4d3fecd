"""The errors of values, the unit in which they count, and target networks."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts import targets, value_units


def defined(value, target, unit, huber_delta, clipping, before):
    """Return half a squared error by Huber's and PPO's definitions, for numbers."""

    def half_square(error):
        error, limit = abs(error), huber_delta * unit
        if error > limit:
            return limit * (error - limit / 2)
        return error**2 / 2

    near = np.clip(value, before - clipping * unit, before + clipping * unit)
    return max(half_square(target - value), half_square(target - near))


NUMBERS = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=30, deadline=None)
@given(
    numbers=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5),
    unit=st.sampled_from([0.01, 1.0, 30.0]),
    huber_delta=st.sampled_from([np.inf, 0.5, 2.0]),
    clipping=st.sampled_from([np.inf, 0.2, 0.0]),
)
def test_errors_are_squared_hubers_or_clipped_as_defined(numbers, unit, huber_delta, clipping):
    values, targets, before = np.float32(numbers).T[:, None]
    got = value_units.errors(
        tf.constant(values), tf.constant(targets), tf.constant(unit),
        huber_delta=huber_delta, clipping=clipping, before=tf.constant(before),
    )  # fmt: skip
    expected = [
        defined(*np.float64([v, g]), unit, huber_delta, clipping, np.float64(b))
        for v, g, b in numbers
    ]
    # A difference of two float32 numbers of up to 1e3.
    np.testing.assert_allclose(got[0], expected, rtol=1e-3, atol=1e-3)


def test_a_value_that_moved_too_far_towards_its_target_has_no_gradient():
    """Values 0 at first, a range of 0.2: one moved to 0.1, one to 0.5, one to -0.5; target 1."""
    values = tf.Variable([0.1, 0.5, -0.5])
    with tf.GradientTape() as tape:
        found = value_units.errors(values, tf.ones([3]), clipping=0.2, before=tf.zeros([3]))
    np.testing.assert_allclose(found, [0.9**2 / 2, 0.8**2 / 2, 1.5**2 / 2], rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(found, values), [-0.9, 0, -1.5], rtol=1e-5)


def test_hubers_gradient_is_bounded_by_its_delta_in_the_unit():
    values = tf.Variable([0.0, 10.0, -1e9])
    with tf.GradientTape() as tape:
        found = value_units.errors(values, tf.ones([3]), 3.0, huber_delta=0.5)
    np.testing.assert_allclose(tape.gradient(found, values), [-1.0, 1.5, -1.5])


def test_the_running_error_is_a_unit_where_it_is_above_1_and_no_nan_gets_in():
    unit = value_units.make_unit("error", None)
    assert float(unit.squared()) == 1.0
    assert float(unit.scale_advantages(tf.constant(5.0))) == 5.0
    (variable,) = unit.learning
    expected = 1.0
    for squared in (0.2, 1000.0, np.nan, np.inf, 4e5):
        unit.see_error(tf.constant(squared))
        expected += 0.01 * (squared - expected) if np.isfinite(squared) else 0.0
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(unit.squared(), max(expected, 1.0), rtol=1e-6)
    assert unit.acting == []
    assert unit.values(tf.constant([[7.0]])).numpy().tolist() == [7.0]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((), [7.0, 1.0, 0.1, 1e-30, 3e38]),
        ((1.0,), [7.0, 1.0, 0.1, 1e-30, 3e38]),
        ((0.25,), [4.0, -0.5, 0.775, 1.5, 7.5e37]),
        ((0.0,), [3.0, -1.0, 1.0, 2.0, 9.0]),
    ],
)
def test_a_share_of_1_copies_a_target_network_exactly_and_0_leaves_it(shares, expected):
    target, online = tf.Variable([3.0, -1, 1, 2, 9]), tf.Variable([7.0, 1, 0.1, 1e-30, 3e38])
    targets.follow([target], [online], *shares)
    np.testing.assert_array_equal(target, np.float32(expected))
