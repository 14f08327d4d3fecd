"""Averaging, clipping and applying of gradients, compared with NumPy and exact numbers."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts import optimizers
from impala_mm.config.settings import Config
from impala_mm.distributed import group
from impala_mm.distributed.gradients import GradientReducer, summarize


class Two(group.SingleLearner):
    """A group of two learners, of which the other one always contributes `other`."""

    size = 2

    def __init__(self, other):
        self._other, self.names = other, []

    def mean(self, tensors, name, compressed=False):
        self.names.append(name)
        return [(a + b) / 2 for a, b in zip(tensors, self._other, strict=True)]


def _step(gradients, clipping, learners=None, mode="global_norm"):
    """Return what apply() returned, and the step of plain gradient descent at rate 1."""
    variables = [tf.Variable(tf.zeros_like(g)) for g in gradients]
    config = Config(gradients_clipping=clipping, gradients_clipping_mode=mode)
    joined = GradientReducer(learners or group.SingleLearner(), config)
    applied = joined.apply(snt.optimizers.SGD(1.0), gradients, variables)
    return applied, [-v.numpy() for v in variables]


def test_gradients_are_averaged_over_learners_before_they_are_clipped():
    """Of (6, 0) and (0, 8) the mean is (3, 4), of norm 5, clipped to norm 1: (0.6, 0.8).

    Clipped before averaging it would be the mean of (1, 0) and (0, 1): (0.5, 0.5).
    """
    mine, other = [tf.constant([6.0, 0.0])], [tf.constant([0.0, 8.0])]
    applied, step = _step(mine, clipping=1.0, learners=Two(other))
    assert float(applied.norm) == pytest.approx(5.0)
    assert float(applied.clipped) == 1
    np.testing.assert_allclose(step[0], [0.6, 0.8], rtol=1e-6)


def test_a_threshold_of_its_own_replaces_the_flag_for_one_call():
    """Two optimizers train one variable, each at its rate and with its clipping."""
    exchange = GradientReducer(group.SingleLearner(), Config(gradients_clipping=1.0))
    variable = tf.Variable([0.0])
    fast, slow = snt.optimizers.SGD(10.0), snt.optimizers.SGD(1.0)
    exchange.apply(fast, [tf.constant([8.0])], [variable])
    np.testing.assert_allclose(variable, [-10.0])
    applied = exchange.apply(slow, [tf.constant([8.0])], [variable], clipping=-1.0)
    np.testing.assert_allclose(variable, [-18.0])
    assert float(applied.clipped) == 0
    exchange.apply(slow, [tf.constant([8.0])], [variable], clipping=2.0)
    np.testing.assert_allclose(variable, [-20.0])


@pytest.mark.parametrize(
    ("mode", "limit", "step"),
    [
        ("variable_norm", 1.0, [[0.6, 0.8], [0.5]]),
        ("variable_norm", 6.0, [[3.0, 4.0], [0.5]]),
        ("value", 3.5, [[3.0, 3.5], [0.5]]),
        ("global_norm", -1.0, [[3.0, 4.0], [0.5]]),
        ("global_norm", 0.0, [[0.0, 0.0], [0.0]]),
    ],
)
def test_clipping_by_variable_or_by_value(mode, limit, step):
    applied, steps = _step([tf.constant([3.0, 4.0]), tf.constant([0.5])], limit, mode=mode)
    for ours, theirs in zip(steps, step, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert float(applied.clipped) == (step[0] != [3.0, 4.0])


def test_a_gradient_that_is_not_finite_is_not_applied_nor_a_later_one_of_the_update():
    applied, steps = _step([tf.constant([1.0, np.nan]), tf.constant([1.0])], 40.0)
    assert not np.isfinite(float(applied.norm))
    assert not np.any(np.concatenate(steps))
    exchange = GradientReducer(group.SingleLearner(), Config())
    exchange.begin(tf.constant(0, tf.int64))
    variable, optimizer = tf.Variable([0.0]), snt.optimizers.SGD(1.0)
    for gradient in (1.0, np.inf, 1.0):
        exchange.apply(optimizer, [tf.constant([gradient])], [variable])
    np.testing.assert_array_equal(variable, [-1.0])
    assert summarize(tf.concat(exchange.read(), 0).numpy()).grad_norm == np.inf
    exchange.begin(tf.constant(1, tf.int64))
    exchange.apply(optimizer, [tf.constant([1.0])], [variable])
    np.testing.assert_array_equal(variable, [-2.0])


def test_names_become_unique_in_the_order_of_the_calls():
    learners = Two([tf.zeros([1])])
    exchange = GradientReducer(learners, Config())
    variable, optimizer = tf.Variable([0.0]), snt.optimizers.SGD(1.0)
    for name in ("a policy", "a policy", "a policy.2"):
        exchange.apply(optimizer, [tf.constant([1.0])], [variable], name)
    names = ["exchange.a_policy", "exchange.a_policy.2", "exchange.a_policy.2.2"]
    assert learners.names == names


def _apply_in_inner_graph(kind, exchange, optimizer, variable):
    """Apply the gradient 1 three times within a cond, a loop, or two calls of a function."""

    def apply():
        return exchange.apply(optimizer, [tf.ones([1])], [variable]).norm

    if kind == "cond":
        for _ in range(3):
            tf.cond(tf.constant(True), apply, lambda: 0.0)
    elif kind == "loop":

        def body(i, _):
            return i + 1, apply()

        tf.while_loop(lambda i, _: i < 3, body, (0, 0.0))
    else:
        inner = tf.function(apply, autograph=False)
        inner(), inner(), inner()


@pytest.mark.parametrize("kind", ["cond", "loop", "function"])
def test_gradients_are_applied_within_inner_graphs_and_their_norms_and_waits_come_out(kind):
    """With two learners, of which the other one contributes 3."""
    exchange = GradientReducer(Two([tf.constant([3.0])]), Config(gradients_clipping=1.0))
    variable, optimizer = tf.Variable([0.0]), snt.optimizers.SGD(1.0)

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))
        _apply_in_inner_graph(kind, exchange, optimizer, variable)
        return tf.concat(exchange.read(), 0)

    for times in (3, 6):
        recorded = summarize(update().numpy())
        np.testing.assert_array_equal(variable, [-times])
        assert recorded.grad_norm == 2
        assert recorded.clipped_share == 1
        assert recorded.gradients == 3
        assert 0 < recorded.wait_seconds < 5


@pytest.mark.parametrize(
    ("learners", "xla"), [(group.SingleLearner(), True), (Two([tf.zeros([2])]), False)]
)
def test_a_variable_that_the_loss_does_not_depend_on_is_named_unless_that_is_allowed(learners, xla):
    exchange = GradientReducer(learners, Config(xla=xla, gradients_clipping=0.5))
    used, unused = (
        tf.Variable([3.0, 4.0]),
        [tf.Variable(float(i), name=f"head/b{i}") for i in range(7)],
    )
    variables = [unused[0], used, *unused[1:]]

    def compute():
        return (tf.reduce_sum(used),)

    named = "head/b0, head/b1, head/b2, head/b3, head/b4 and 2 more"
    with pytest.raises(ValueError, match=named):
        exchange.differentiate(compute, variables)
    _, gradients = exchange.differentiate(compute, variables, allow_unused=True)
    optimizer = optimizers.Adam(1.0)
    optimizer.initialize(variables)
    exchange.apply(optimizer, gradients, variables)
    assert [float(v) for v in unused] == [0, 1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(used, [2.0, 3.0], rtol=1e-5)


def test_gradients_that_are_all_none_or_too_few_are_refused():
    exchange, v = GradientReducer(group.SingleLearner(), Config()), tf.Variable(0.0)
    with pytest.raises(ValueError, match="all gradients of actor are None"):
        exchange.apply(snt.optimizers.SGD(1.0), [None, None], [v, v], "actor")
    with pytest.raises(ValueError, match=r"apply \(actor\) was given 1 gradients for 2 variables"):
        exchange.apply(snt.optimizers.SGD(1.0), [v], [v, v], "actor")


def test_a_mean_is_of_floats_whatever_it_is_given():
    exchange = GradientReducer(Two([tf.constant(4.0)]), Config())
    for value in (1, True, 1.0, np.int64(1), np.float32(1), tf.constant(1), tf.Variable(1.0)):
        mean = exchange.mean(value, "same name")
        assert (mean.dtype, float(mean)) == (tf.float32, 2.5)
    double = GradientReducer(Two([tf.constant(4.0, tf.float64)]), Config()).mean(np.float64(1e-9))
    assert (double.dtype, float(double)) == (tf.float64, 2 + 5e-10)


def test_gradients_of_embeddings_and_of_float64_are_averaged_and_clipped():
    """Row 1 is read by this learner, row 2 by the other one."""
    rows, scale = tf.Variable(tf.zeros([3, 1])), tf.Variable(0.0, dtype=tf.float64)
    other = [tf.constant([[0.0], [0.0], [8.0]]), tf.constant(0.0, tf.float64)]
    exchange = GradientReducer(Two(other), Config(gradients_clipping=2.5))
    _, gradients = exchange.differentiate(
        lambda: (6.0 * tf.gather(rows, [1])[0, 0] + tf.cast(0.0 * scale, tf.float32),),
        [rows, scale],
    )
    applied = exchange.apply(snt.optimizers.SGD(1.0), gradients, [rows, scale])
    assert float(applied.norm) == 5
    np.testing.assert_allclose(rows, [[0], [-1.5], [-2.0]])


def test_an_average_within_what_xla_compiles_is_refused_on_any_number_of_learners():
    exchange = GradientReducer(group.SingleLearner(), Config(xla=True))
    variable = tf.Variable(1.0)
    with pytest.raises(ValueError, match=r"\(loss\) was called in .* --xla compiles: Horovod does"):
        exchange.differentiate(lambda: (exchange.mean(variable * 1.0, "loss"),), [variable])
    assert float(exchange.mean(variable, "afterwards")) == 1


finite = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(finite, min_size=1, max_size=4), min_size=1, max_size=4), st.floats(0.1, 50)
)
def test_clipping_by_global_norm_is_that_of_float64_numpy(values, clipping):
    gradients = [tf.constant(v, tf.float32) for v in values]
    exact = [np.asarray(v, np.float64) for v in values]
    norm = np.sqrt(sum((v**2).sum() for v in exact))
    applied, step = _step(gradients, clipping)
    assert float(applied.norm) == pytest.approx(norm, rel=1e-5, abs=1e-6)
    for ours, theirs in zip(step, exact, strict=True):
        np.testing.assert_allclose(
            ours, theirs * min(1.0, clipping / max(norm, 1e-30)), rtol=1e-5, atol=1e-6
        )
