"""RMSProp, Adam and RAdam against steps calculated by hand, and what the learner needs of both."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts import optimizers
from impala_mm.config.settings import Config


def test_adam_takes_kingma_and_bas_steps():
    """Rate 0.1, beta 0.9 and 0.999, epsilon 1, gradients 3, then 1, from x = 5.

    m = 0.3, v = 0.009; m' = 0.3 / 0.1 = 3, v' = 0.009 / 0.001 = 9: 0.1 x 3 / (3 + 1) = 0.075.
    m = 0.37, v = 0.009991; m' = 0.37 / 0.19 = 1.9473684, v' = 0.009991 / 0.001999 = 4.9979990:
    0.1 x 1.9473684 / (2.2356205 + 1) = 0.0601853.
    """
    x = tf.Variable(5.0)
    optimizer = optimizers.Adam(0.1, epsilon=1.0)
    optimizer.apply([tf.constant(3.0)], [x])
    np.testing.assert_allclose(x, 4.925, rtol=1e-6)
    optimizer.apply([tf.constant(1.0)], [x])
    np.testing.assert_allclose(x, 4.925 - 0.0601853, rtol=1e-6)


def test_radam_follows_its_formula_before_and_after_the_variance_is_known():
    x, m, v = np.array([5.0, -1.0]), np.zeros(2), np.zeros(2)
    variable, optimizer = tf.Variable(x, dtype=tf.float32), optimizers.RAdam(0.1)
    rng, last = np.random.default_rng(0), 2 / 0.001 - 1
    for t in range(1, 9):
        gradient = rng.normal(0, 2, 2)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        now = last - 2 * t * 0.999**t / (1 - 0.999**t)
        step = 0.1 * m / (1 - 0.9**t)
        assert (now > 5) == (t > 5)
        if now > 5:
            share = (now - 4) * (now - 2) * last / ((last - 4) * (last - 2) * now)
            step *= np.sqrt(share) / (np.sqrt(v / (1 - 0.999**t)) + 1e-5)
        x = x - step
        optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
        np.testing.assert_allclose(variable, x, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    decay=st.sampled_from([0.5, 0.9, 0.99]),  # at 0 the kernel cancels: 1 + (g^2 - 1)
    momentum=st.sampled_from([0.0, 0.9]),
    epsilon=st.sampled_from([1e-6, 0.01, 0.1]),
)
def test_rmsprop_follows_its_formula_at_a_changing_rate(seed, decay, momentum, epsilon):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (2, 3))
    variable = tf.Variable(x, dtype=tf.float32)
    optimizer = optimizers.RMSProp(0.5, decay, momentum, epsilon)
    ms, mom = np.ones_like(x), np.zeros_like(x)
    for rate in (0.5, 0.1, 0.0):
        gradient = rng.normal(0, 2, x.shape)
        ms = decay * ms + (1 - decay) * gradient**2
        mom = momentum * mom + rate * gradient / np.sqrt(ms + epsilon)
        x = x - mom
        optimizer.learning_rate.assign(rate)
        optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
    np.testing.assert_allclose(variable, x, rtol=1e-4, atol=1e-4)


MAKES = pytest.mark.parametrize("name", optimizers.OPTIMIZERS)


def made(name):
    return optimizers.make(name, learning_rate=0.1, decay=0.9, momentum=0.5, epsilon=0.01)


@pytest.mark.parametrize(("name", "epsilon"), [("rmsprop", 0.01), ("adam", 1e-5), ("radam", 1e-5)])
def test_make_hands_its_settings_on_and_a_negative_epsilon_is_the_optimizers_own(name, epsilon):
    assert optimizers.make(name, 0.1, 0.9, 0.5, 0.3).epsilon == pytest.approx(0.3)
    own = optimizers.make(name, 0.1, 0.9, 0.5, -1)
    assert own.epsilon == epsilon
    if name == "rmsprop":
        assert (own.decay, own.momentum) == (0.9, 0.5)


@MAKES
def test_variables_exist_before_the_first_step_and_none_is_a_parameter(name):
    parameters = [tf.Variable(tf.zeros([2, 3])), tf.Variable(tf.zeros([4]))]
    optimizer = made(name)
    optimizer.initialize(parameters)
    before = optimizer.variables
    shapes = [tuple(v.shape) for v in before]
    assert (shapes.count((2, 3)), shapes.count((4,))) == (2, 2)
    assert any(v is optimizer.learning_rate for v in before)
    assert not any(v.trainable for v in before)
    assert not any(v is p for v in before for p in parameters)
    optimizer.initialize(parameters)
    optimizer.apply([tf.ones([2, 3]), tf.ones([4])], parameters)
    assert [id(v) for v in optimizer.variables] == [id(v) for v in before]


@MAKES
def test_copied_variables_continue_the_same_course(name):
    """Copy the variables, as a checkpoint and the broadcast to other learners do."""
    gradients = np.random.default_rng(0).normal(0, 1, (4, 3)).astype(np.float32)
    x, y = tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([3]))
    one, other = made(name), made(name)
    for gradient in gradients[:2]:
        one.apply([gradient], [x])
    other.initialize([y])
    y.assign(x)
    for to, origin in zip(other.variables, one.variables, strict=True):
        to.assign(origin)
    for gradient in gradients[2:]:
        one.apply([gradient], [x])
        other.apply([gradient], [y])
    np.testing.assert_array_equal(x, y)


@MAKES
def test_a_parameter_without_a_gradient_stays_and_sparse_gradients_work(name):
    table, unused = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.ones([2]))
    sparse = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1]), tf.constant([3, 2]))
    made(name).apply([sparse, None], [table, unused])
    np.testing.assert_array_equal(unused, [1, 1])
    np.testing.assert_array_equal(table.numpy()[[0, 2]], 0)
    dense = tf.Variable(tf.zeros([3, 2]))
    made(name).apply([tf.constant([[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]])], [dense])
    np.testing.assert_array_equal(table, dense)


@pytest.mark.parametrize(
    ("frames", "rate"), [(0, 0.25), (500, 0.125), (1000, 0.0), (1001, 0.0), (10**9, 0.0)]
)
def test_the_rate_falls_in_a_line_and_stays_at_zero(frames, rate):
    for number in (frames, tf.constant(frames, tf.int64)):
        assert float(optimizers.linear_decay(0.25, number, 1000)) == rate


@given(
    kind=st.sampled_from(["linear", "constant", "polynomial"]),
    rate=st.floats(1e-6, 1.0),
    end=st.floats(0.0, 1.0),
    power=st.floats(0.1, 4.0),
    own=st.none() | st.floats(1e-6, 1.0),
    share=st.floats(0.0, 1.5),
)
@settings(max_examples=30, deadline=None)
def test_scheduled_rates_are_those_of_numpy(kind, rate, end, power, own, share):
    """An optimizer with a rate of its own ends at the same share of it as the others."""
    config = Config(
        learning_rate=rate,
        learning_rate_schedule=kind,
        learning_rate_end=end,
        learning_rate_power=power,
    )
    total = 1e6
    found = float(optimizers.scheduled_rate(config, share * total, total, own))
    exponent = {"linear": 1.0, "constant": 0.0, "polynomial": power}[kind]
    left = 1.0 if kind == "constant" else max(0.0, 1.0 - share) ** exponent
    first, last = (rate, end) if own is None else (own, end * own / rate)
    assert found == pytest.approx(last + (first - last) * left, rel=1e-5, abs=1e-9)
