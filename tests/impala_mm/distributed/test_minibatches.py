"""Minibatches of one update: their order, their ends, and several learners that share a batch."""

import math

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from in_process import by_xla
from in_threads import together

from impala_mm.config.settings import Config
from impala_mm.distributed import group
from impala_mm.distributed.gradients import GradientReducer

ALONE = group.SingleLearner()


def _exchange(learners=ALONE, update=0, **settings):
    exchange = GradientReducer(learners, Config(**settings))
    exchange.begin(tf.constant(update, tf.int64))
    return exchange


def _orders(exchange, size=6, epochs=2, count=3):
    """Return the indices of each step, [epochs, count, size / count]."""
    seen = []

    def step(indices):
        seen.append(indices.numpy())
        return {}

    assert exchange.minibatches(step, size, epochs, count).metrics == {}
    return np.reshape(seen, [epochs, count, -1])


def test_each_epoch_takes_every_column_once_in_an_order_of_its_own():
    first, second = _orders(_exchange(), 60)
    for epoch in (first, second):
        np.testing.assert_array_equal(np.sort(epoch, axis=None), np.arange(60))
        assert not np.array_equal(epoch.ravel(), np.arange(60))
    assert not np.array_equal(first, second)


def test_the_order_depends_on_the_update_the_seed_and_the_loop_and_on_nothing_else():
    exchange = _exchange(update=3, seed=5)
    first, later = _orders(exchange, 60), _orders(exchange, 60)
    np.testing.assert_array_equal(first, _orders(_exchange(update=3, seed=5), 60))
    for other in (later, *(_orders(_exchange(**o), 60) for o in ({"seed": 5}, {"update": 3}))):
        assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 1, 4), "cannot divide 10 columns into 4 equal minibatches"),
        ((4, 0, 4), "epochs=0 and count=4"),
        ((4, 1, 2, {"kl": 0.1}), "stop_above names kl, but the step returns only loss"),
    ],
)
def test_minibatches_that_cannot_be_made_or_stopped_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        _exchange().minibatches(lambda indices: {"loss": 0.0}, *arguments)


def test_in_a_graph_the_metrics_are_averaged_over_the_steps_that_measured_them():
    """The size is known only when the graph runs."""
    exchange, made = _exchange(), tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    def update(size):
        exchange.begin(tf.constant(0, tf.int64))

        def step(indices):
            k = made.assign_add(1.0)
            rare = tf.where(k > 3, k, float("nan"))
            return {"step": k, "columns": tf.size(indices), "rare": rare, "never": np.nan}

        return exchange.minibatches(step, size, epochs=2, count=2)

    result = update(tf.constant(6))
    assert int(result.steps) == 4
    averages = {name: float(value) for name, value in result.metrics.items()}
    assert averages == pytest.approx(
        {"step": 2.5, "columns": 3, "rare": 4, "never": np.nan}, nan_ok=True
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot divide size columns into 2"):
        update(tf.constant(5))


def test_from_the_first_step_that_is_not_finite_none_is_made():
    exchange, variable, made = _exchange(), tf.Variable(0.0), tf.Variable(0)
    optimizer = snt.optimizers.SGD(1.0)

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))

        def step(indices):
            gradient = tf.where(tf.equal(made.assign_add(1), 3), float("nan"), 1.0)
            exchange.apply(optimizer, [gradient], [variable])
            return {}

        return exchange.minibatches(step, 4, epochs=2, count=4).steps, exchange.read()

    steps, (sums, _) = update()
    assert (int(steps), int(made), float(variable)) == (3, 3, -2.0)
    assert np.isnan(sums[0])


@pytest.mark.parametrize(("factor", "limit"), [(3.0, 5.0), (math.nan, 2.5)])
def test_learners_stop_after_the_same_step_by_the_mean_of_those_that_measured(factor, limit):
    """The divergences 1, 2, ... and 3, 6, ... have the means 2, 4, 6."""

    def act(learners):
        made = []

        def step(indices):
            made.append(len(made) + 1)
            return {"kl": tf.constant(made[-1] * (factor if learners.rank else 1.0))}

        exchange = _exchange(learners)
        return int(exchange.minibatches(step, 4, 2, 4, {"kl": limit}).steps), len(made)

    assert together(2, act) == [(3, 3), (3, 3)]


INPUTS = np.random.default_rng(0).standard_normal([8, 3]).astype(np.float32)


def _train(learners, num_learners=1, count=2):
    """Return the weights after two updates; one learner may take the parts of several."""
    mine = INPUTS.reshape(learners.size, -1, 3)[learners.rank]
    weights = tf.Variable([1.0, 2.0, 3.0])
    optimizer, size = snt.optimizers.Momentum(0.1, 0.9), len(mine) // num_learners
    exchange = _exchange(learners, gradients_clipping=0.3)

    def step(indices):
        of_all = tf.concat([indices + rank * size for rank in range(num_learners)], 0)
        part = tf.gather(mine, of_all)
        (loss,), gradients = exchange.differentiate(
            lambda: (tf.reduce_mean((tf.linalg.matvec(part, weights) - 1.0) ** 2),), [weights]
        )
        exchange.apply(optimizer, gradients, [weights])
        return {"loss": loss}

    for update in range(2):
        exchange.begin(tf.constant(update, tf.int64))
        loss = exchange.minibatches(step, size, epochs=3, count=count).metrics["loss"]
        loss = exchange.mean(loss)
    return weights.numpy(), float(loss)


@pytest.mark.parametrize("count", [1, 2])
def test_learners_share_a_batch_each_in_the_same_order_of_its_own_columns(count):
    """They are one learner each of whose minibatches joins theirs.

    With the complete batch in each step, they are one learner whatever its order.
    """
    weights, loss = _train(ALONE, num_learners=2, count=count)
    for ours, their_loss in together(2, lambda learners: _train(learners, count=count)):
        np.testing.assert_allclose(ours, weights, rtol=1e-5)
        assert their_loss == pytest.approx(loss, rel=1e-5)
    alone, _ = _train(ALONE, count=count)
    assert np.allclose(alone, weights, rtol=1e-5) == (count == 1)


@pytest.mark.parametrize(("fails_at", "made"), [(0, 12), (5, 5)])
def test_a_compiled_loop_makes_the_same_steps(fails_at, made):
    """`fails_at` is the number of the step whose gradient is not finite; 0: none."""

    def train(compiled):
        weights, calls = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(0)
        exchange, optimizer = _exchange(gradients_clipping=0.3), snt.optimizers.Momentum(0.1, 0.9)

        def step(indices, goals):
            fault = tf.where(tf.equal(calls.assign_add(1), fails_at), float("nan"), 1.0)
            part, goal = tf.gather(INPUTS, indices), tf.gather(goals, indices)
            (loss,), gradients = exchange.differentiate(
                lambda: (fault * tf.reduce_mean((tf.linalg.matvec(part, weights) - goal) ** 2),),
                [weights],
            )
            exchange.apply(optimizer, gradients, [weights])
            return {"loss": loss, "rare": tf.where(calls > 3, loss, float("nan"))}

        @tf.function(autograph=False)
        def update():
            exchange.begin(tf.constant(1, tf.int64))
            renewed = (tf.zeros([8]), lambda: tf.linalg.matvec(INPUTS, weights) + 1.0)
            result = exchange.minibatches(step, 8, 3, 4, renewed=renewed, compiled=compiled)
            return result, exchange.read()

        result, (sums, _) = update()
        assert by_xla(update) == compiled
        assert int(result.steps) == made
        assert np.isfinite(sums[0]) == (not fails_at)
        return weights.numpy(), [float(x) for x in result.metrics.values()]

    for compiled, plain in zip(train(True), train(False), strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-5)


def test_a_compiled_loop_ends_where_a_metric_is_above_its_limit():
    calls = tf.Variable(0.0)
    exchange = _exchange()

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))
        return exchange.minibatches(
            lambda indices: {"kl": calls.assign_add(1.0)}, 4, 2, 4, {"kl": 2.5}, compiled=True
        )

    result = update()
    assert (int(result.steps), float(result.metrics["kl"])) == (3, 2.0)


@pytest.mark.parametrize(("limit", "steps"), [(0.3, 8), (0.09, 1)])
def test_a_sum_and_a_count_are_compared_as_the_mean_of_all_learners_terms(limit, steps):
    """The learners' own means are 1 and 0, that of all ten terms is 0.1."""

    def act(learners):
        kl = tf.constant([[1.0, 1.0], [0.0, 9.0]][learners.rank])
        result = _exchange(learners).minibatches(lambda indices: {"kl": kl}, 4, 2, 4, {"kl": limit})
        return int(result.steps), float(result.metrics["kl"])

    assert together(2, act) == [(steps, 1.0), (steps, 0.0)]


def test_loops_of_several_learners_are_not_compiled():
    """An average of several learners cannot be computed within XLA."""

    def act(learners):
        exchange = _exchange(learners)

        def step(indices):
            return {"mean": exchange.mean(float(learners.rank))}

        return float(exchange.minibatches(step, 4, 1, 4, compiled=True).metrics["mean"])

    assert together(2, act) == [0.5, 0.5]
