"""An update as one call: its results, the values read after it, and equal numbers under XLA."""

import math

import in_process
import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.data.variables import Variables
from impala_mm.distributed import group
from impala_mm.environments.make import make_environments
from impala_mm.learner.train_step import (
    GradientNotFinite,
    NothingCompiled,
    TrainStep,
    UpdateProfiler,
    VariablesNotFinite,
)
from impala_mm.records.metrics import Meter, MetricsAggregator

ALONE, BATCH = group.SingleLearner(), Batch(*[tf.ones([3])] * 6)


class Counting(Algorithm):
    """An algorithm that adds the frames to its only variable, and takes no gradient."""

    def __init__(self):
        self.variable = tf.Variable(1.0)
        self.variables = Variables([self.variable], [], [])

    def update(self, batch, context, exchange):
        self.variable.assign_add(context.frames)
        told = {name: getattr(context, name) for name in context._fields}
        return told | {"whole": tf.constant(7)}, batch.weight


def test_numbers_go_in_and_metrics_come_out_by_name_and_what_is_read_is_of_after_the_update():
    algorithm = Counting()
    update = TrainStep(algorithm, ALONE, Config(), lambda: [algorithm.variable.read_value()])
    outcomes = [update(BATCH, frames, 50e6, -21.5) for frames in (2.0, 5.0)]
    for outcome, frames, after in zip(outcomes, (2.0, 5.0), (3.0, 8.0), strict=True):
        expected = {"frames": frames, "total": 50e6, "episode_return": -21.5, "whole": 7.0}
        assert outcome.metrics == expected
        assert outcome.reduce_seconds == 0.0
        assert [float(value) for value in outcome.acting_values] == [after], "it stays"
        np.testing.assert_array_equal(outcome.priorities, np.ones(3))


class Skipping(Algorithm):
    """An algorithm that makes a step only in later updates, and reports no norm."""

    def __init__(self):
        self._weight, self._optimizer = tf.Variable(3.0), snt.optimizers.SGD(0.1)
        self.variables = Variables([self._weight], [], [])

    def update(self, batch, context, exchange):
        def step():
            (loss,), gradients = exchange.differentiate(lambda: (self._weight**2,), [self._weight])
            exchange.apply(self._optimizer, gradients, [self._weight])
            return loss

        loss = tf.cond(context.frames > 0, step, lambda: float("nan"))
        return {"loss/total": loss}, batch.weight


def test_norms_are_added_and_an_update_that_measured_nothing_counts_in_no_average():
    update, meter = TrainStep(Skipping(), ALONE, Config(gradients_clipping=1.0), list), Meter()
    for frames in (0.0, 2.0, 0.0):
        metrics = update(BATCH, frames, 1.0, 0.0).metrics
        assert metrics.keys() == {"loss/total", "grad_norm", "clipped_share"}
        assert all(math.isnan(value) == (frames == 0) for value in metrics.values())
        meter.add(metrics | {"policy_lag": 2.0}, steps=3)
    aggregator = MetricsAggregator({"catch": None})
    aggregator.merge(0, meter.take_reading())
    row = aggregator.row(9.0, 9.0)
    found = [row[name] for name in ("loss/total", "grad_norm", "clipped_share", "policy_lag")]
    assert found == pytest.approx([9.0, 6.0, 1.0, 2.0])


class Overflowing(Skipping):
    """An algorithm that measures one thing never, and another while the frames are finite."""

    def update(self, batch, context, exchange):
        metrics, priorities = super().update(batch, context, exchange)

        def fail():
            gradients = [self._weight * context.frames * float("nan")]
            exchange.apply(self._optimizer, gradients, [self._weight])
            return tf.constant(float("nan"))

        loss = tf.cond(context.total > 1, fail, lambda: tf.constant(2.0))
        return metrics | {"loss/never": tf.constant(float("nan")), "loss/failing": loss}, priorities


def test_an_update_that_fails_does_not_name_what_it_would_not_have_measured_anyway():
    update = TrainStep(Overflowing(), ALONE, Config(), list)
    update(BATCH, 2.0, 1.0, 0.0)
    with pytest.raises(GradientNotFinite, match=r"loss/failing = nan.*grad_norm = nan") as caught:
        update(BATCH, 2.0, 2.0, 0.0)
    assert "loss/never" not in str(caught.value)


class Three(group.SingleLearner):
    """Learner 1 of three, of which the others have these gradients and losses."""

    rank, size = 1, 3

    def __init__(self, others):
        self._others = others

    def mean(self, tensors, name, compressed=False):
        return [(own + sum(each for each, _ in self._others)) / 3 for own in tensors]

    def gather(self, value, name):
        told = [(not math.isfinite(g), value[1] | {"loss": loss}) for g, loss in self._others]
        return [told[0], value, told[1]]


class Given(Skipping):
    """An algorithm whose batch is its own gradient and its loss."""

    def update(self, batch, context, exchange):
        own, loss = tf.unstack(batch.unrolls)
        exchange.apply(self._optimizer, [own + 0 * self._weight], [self._weight])
        return {"loss": loss}, batch.weight


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        ((math.inf, 2.0), [(1.0, 2.0)] * 2, " on learner 1 (grad_norm = inf)"),
        ((1.0, 2.0), [(1.0, 2.0), (math.nan, 2.0)], " on learner 2 (grad_norm = nan)"),
        ((math.inf, 2.0), [(math.inf, math.inf), (1.0, 2.0)], " on learners 0 and 1 (loss = inf"),
        ((math.inf, math.inf), [(math.inf, math.inf)] * 2, " (loss = inf, grad_norm = inf)"),
        ((1e30, 2.0), [(1.0, 2.0)] * 2, " on learner 1 (grad_norm = inf)"),
    ],
)
def test_the_learners_where_an_update_that_fails_is_not_finite_are_named(own, others, said):
    algorithm = Given()
    update = TrainStep(algorithm, Three(others), Config(), list)
    with pytest.raises(GradientNotFinite) as caught:
        update(BATCH._replace(unrolls=tf.constant(own)), 2.0, 1.0, 0.0)
    assert str(caught.value).startswith(f"update 1 is not finite{said}")
    assert float(algorithm._weight) == 3.0


class Exploding(Algorithm):
    """An algorithm that adds the frames to its variables but one, and takes no gradient."""

    def __init__(self, dtype):
        self.bad = tf.Variable(tf.ones([2, 2], dtype), name="bad")
        self.good, self.count = tf.Variable(2.0, name="good"), tf.Variable(2**60, name="count")
        self.variables = Variables([self.good, self.bad], [self.count], [])

    def update(self, batch, context, exchange):
        self.bad[0, 1].assign(tf.cast(context.frames, self.bad.dtype))
        return {}, batch.weight


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_variables_that_an_update_made_infinite_are_named_at_once(dtype):
    algorithm = Exploding(dtype)
    checked = [algorithm.good, algorithm.bad, algorithm.count]
    update = TrainStep(algorithm, ALONE, Config(), list, checked=checked)
    assert update(BATCH, 1.0, 1.0, 0.0).weight_size == pytest.approx(math.sqrt(8 / 5))
    assert update(BATCH, 1e15, 1.0, 0.0).weight_size == pytest.approx(1e15 / math.sqrt(5), rel=0.01)
    for frames in (math.inf, math.nan, 3e38):
        with pytest.raises(VariablesNotFinite, match=r"update 8 made .* 1e19: bad; they are not"):
            update(BATCH, frames, 1.0, 0.0, 7)


def test_a_gradient_that_fails_by_a_variable_names_it():
    algorithm = Given()
    update = TrainStep(algorithm, ALONE, Config(), list, checked=[algorithm._weight])
    algorithm._weight.assign(math.nan)
    with pytest.raises(GradientNotFinite, match="variable Variable = nan"):
        update(BATCH._replace(unrolls=tf.ones([2])), 2.0, 1.0, 0.0)


def test_an_algorithm_that_leaves_nothing_to_compile_is_refused_under_xla():
    with pytest.raises(NothingCompiled, match="--algorithm=mine"):
        TrainStep(Counting(), ALONE, Config(xla=True, algorithm="mine"), list)(BATCH, 1.0, 1.0, 0.0)


def _played(config):
    """Return a batch played by an untrained policy, and the initial weights."""
    algorithm = in_process.make(config)
    environment = make_environments(config.level_name, config.batch_size, seed=0)
    played = UnrollPlayer(algorithm, [(environment, config.batch_size)]).play()
    weights = [v.numpy() for v in algorithm.variables.trained]
    return in_process.decoded(UnrollCodec(algorithm.unroll), tf.constant(played)), weights


def _two_updates(config, batch, weights):
    """Make two updates; return the second one's metrics and all variables after it."""
    algorithm = in_process.make(config)
    trained, carried, *_ = algorithm.variables
    for variable, value in zip(trained, weights, strict=True):
        variable.assign(value)
    update = TrainStep(algorithm, ALONE, config, list)
    outcome = [update(batch, frames, 100.0, 0.0) for frames in (0.0, 12.0)][-1]
    return outcome.metrics, [v.numpy() for v in [*trained, *carried]]


@pytest.mark.parametrize(
    "settings",
    [
        {"agent_name": "MLPAgent"},
        # Two optimizer steps.
        pytest.param({"algorithm": "tests.helpers.dqn_like"}, marks=pytest.mark.slow),
    ],
)
def test_compiled_by_xla_an_update_is_the_same(settings):
    """IMPALA uses RMSProp here, since rounding may flip the signs of Adam's first steps."""
    settings = {"level_name": "catch", "optimizer": "rmsprop"} | settings
    config = Config(unroll_length=3, batch_size=4, **settings)
    batch, weights = _played(config)
    plain, variables = _two_updates(config, batch, weights)
    xla, compiled = _two_updates(Config(**vars(config) | {"xla": True}), batch, weights)
    assert plain["grad_norm"] > 0
    assert xla == pytest.approx(plain, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(compiled, variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@tf.function
def _update(x):
    return tf.linalg.matmul(x, x)


def _train(text, folder, updates):
    said = []
    profile = UpdateProfiler(text, folder, said.append)
    for _ in range(updates):
        with profile.update():
            _update(tf.ones([64, 64]))
    profile.stop()
    return said, [path for path in folder.rglob("*.xplane.pb") if path.stat().st_size]


def test_the_updates_asked_for_are_traced_by_number(tmp_path):
    said, traces = _train("2:4", tmp_path, updates=6)
    assert f"traced updates 2 to 3: {tmp_path}/plugins/profile" in said[0]
    (trace,) = traces
    assert b"MatMul" in trace.read_bytes()
    assert _train("", tmp_path / "none", updates=3) == ([], [])
    said, traces = _train("1:100", tmp_path / "ended", updates=3)
    assert "traced updates 1 to 2" in said[0], "it keeps what there is"
    assert len(traces) == 1
