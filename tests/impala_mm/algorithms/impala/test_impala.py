"""IMPALA's update: large errors of the baseline are divided by their own running mean."""

import dataclasses

import in_process
import in_threads
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.feature import NO_FEATURES, Begun
from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.parts import losses
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.distributed import gradients, group
from impala_mm.environments.make import make_environments
from tests.helpers import impala_by_numpy


def _running_error(algorithm):
    """Return the variable in which the running mean of squared errors is."""
    (variable,) = algorithm._unit.learning
    return variable


def _one_update(squared_error, changed=lambda batch: batch, level="catch", **settings):
    """Return the algorithm after an update from this running mean, and the metrics."""
    config = ImpalaSettings.of(Config(level_name=level, unroll_length=5, num_envs=4))
    config = dataclasses.replace(config, **settings)
    algorithm = in_process.make(config)
    _running_error(algorithm).assign(squared_error)
    played = UnrollPlayer(algorithm, [(make_environments(level, 4, seed=0), 4)]).play()
    metrics = in_process.updater(algorithm, config, changed, traced=False)(played, over=0.0)
    return algorithm, {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize("reduction", losses.REDUCTIONS)
def test_the_running_mean_moves_by_a_hundredth_towards_the_batchs(reduction):
    algorithm, metrics = _one_update(40.0, loss_reduction=reduction)
    of_batch = 2 * metrics["loss/baseline"] / (20 if reduction == "sum" else 1)  # 5 steps of 4
    assert of_batch > 0
    np.testing.assert_allclose(_running_error(algorithm), 39.6 + 0.01 * of_batch, rtol=1e-6)
    steps = 20 if reduction == "sum" else 1
    for name in ("total", "policy", "baseline", "entropy"):
        assert metrics[f"loss/{name}"] == pytest.approx(steps * metrics[f"loss_per_step/{name}"])
    assert metrics["off_policyness"] == pytest.approx(metrics["loss/shift"] / steps)


def test_a_loss_that_is_a_sum_is_the_mean_times_the_number_of_steps():
    """That of the policy, the values and the entropy, and that of features."""
    algorithm, batch = _moved(learning_rate=0.0, kl_mu_pi_cost=0.5, value_normalization="none")
    exchange = gradients.GradientReducer(group.SingleLearner(), algorithm._config)
    context, found = Context(*tf.constant([0.0, 1e9, 0.0])), {}
    for reduction in losses.REDUCTIONS:
        algorithm._config = dataclasses.replace(algorithm._config, loss_reduction=reduction)
        found[reduction], _ = algorithm.update(batch, context, exchange)
    assert float(found["mean"]["kl_mu_pi"]) > 1e-3
    for name in ("total", "policy", "baseline", "entropy"):
        total, mean = (float(found[reduction][f"loss/{name}"]) for reduction in losses.REDUCTIONS)
        assert total == pytest.approx(20 * mean, rel=1e-4), name  # 5 steps of 4


@pytest.mark.parametrize(("mean", "divisor"), [(0.25, 1), (50.0, 50)])
def test_errors_count_in_units_of_the_running_mean_where_it_is_above_1(mean, divisor):
    _, metrics = _one_update(mean, baseline_cost=0.5, entropy_cost=0.25)
    parts = metrics["loss/policy"] + 0.25 * metrics["loss/entropy"]
    expected = parts + 0.5 * metrics["loss/baseline"] / divisor
    np.testing.assert_allclose(metrics["loss/total"], expected, rtol=1e-5)


def _moved(**settings):
    """Return an algorithm whose policy has moved since it played a batch, and this batch."""
    _, algorithm, batch = _played(policy_init_scale=1.0, **settings)
    for variable in algorithm.variables.trained:
        variable.assign(variable * 2.0)
    return algorithm, batch


def test_errors_of_the_baseline_count_linearly_beyond_a_multiple_of_their_root():
    algorithm, batch = _moved(huber_delta=0.1)
    _running_error(algorithm).assign(16.0)
    found = impala_by_numpy.learnt(algorithm, batch)
    errors = np.abs(found.targets - found.values)
    inside = np.minimum(errors, 0.1 * 4.0)
    assert 0 < (inside == errors).mean() < 1
    loss = algorithm._loss(Begun(batch, (), 0.0, {}), None, NO_FEATURES)[1]
    expected = (inside * (errors - inside / 2)).sum()
    assert float(loss.baseline) == pytest.approx(expected, rel=1e-4)


def test_the_loss_has_every_regulariser_times_its_cost():
    """Other parameters are recorded than those of the policy, so that it diverges from them."""

    def others(batch):
        noise = np.random.default_rng(0).normal(size=batch.unrolls.extras.shape)
        return batch._replace(unrolls=batch.unrolls._replace(extras=noise.astype("f")))

    costs = {"entropy": -0.25, "kl_mu_pi": 0.5, "kl_pi_mu": 0.3, "kl_ref_pi": 0.2}
    flags = {f"{name}_cost": abs(cost) for name, cost in costs.items()}
    algorithm, metrics = _one_update(
        1.0, others, **flags, target_entropy=0.5, baseline_cost=0.5, loss_reduction="mean"
    )
    measured = metrics | {"entropy": -metrics["loss/entropy"]}
    assert min(measured[name] for name in costs if name != "kl_ref_pi") > 0.1
    expected = metrics["loss/policy"] + 0.5 * metrics["loss/baseline"]
    expected += sum(cost * measured[name] for name, cost in costs.items())
    assert metrics["loss/total"] == pytest.approx(expected, rel=1e-4)
    assert metrics["entropy_cost"] == pytest.approx(0.25)
    (log,) = [v for v in algorithm.variables.carried if "entropy_cost" in v.name]
    assert float(log) < np.log(0.25), "the entropy is above its target"


def test_it_is_in_checkpoints_and_no_nan_gets_in():
    def broken(batch):
        rewards = tf.fill(tf.shape(batch.unrolls.reward), np.nan)
        return batch._replace(unrolls=batch.unrolls._replace(reward=rewards))

    algorithm, _ = _one_update(7.0, broken)
    assert any(v is _running_error(algorithm) for v in algorithm.variables.carried)
    assert float(_running_error(algorithm)) == 7.0


def test_actions_of_every_space_are_judged_by_the_policy_that_chose_them():
    """The actor's parameters are the learner's here, so that all log-ratios are 0.

    In a column of weight 0 these parameters may be anything.
    """

    def padded(batch):
        entries = tf.nest.map_structure(tf.zeros_like, batch.unrolls)
        entries = entries._replace(extras=entries.extras + np.nan)
        start = tf.nest.map_structure(lambda x: tf.concat([x, x], 0), batch.start)
        both = tf.nest.map_structure(lambda a, b: tf.concat([a, b], 1), batch.unrolls, entries)
        weight = tf.concat([batch.weight, tf.zeros_like(batch.weight)], 0)
        fresh = tf.concat([batch.fresh, batch.fresh], 0)
        return batch._replace(unrolls=both, start=start, weight=weight, fresh=fresh)

    level = "acting:Harbour-v0"
    algorithm, plain = _one_update(1.0, level=level)
    assert abs(plain["off_policyness"]) < 1e-4
    assert plain["grad_norm"] > 0
    _, metrics = _one_update(1.0, padded, level=level)
    for name in ("loss/policy", "loss/baseline", "loss/entropy", "grad_norm"):
        assert metrics[name] == pytest.approx(plain[name], rel=1e-4), name
    assert all(np.isfinite(v).all() for v in algorithm.variables.trained)


def test_a_learner_sees_the_action_that_a_normal_policy_drew_and_the_network_its_clipped_form():
    """All means are 5 deviations and more beyond the bounds -2 and 2, which stand for -1 and 1."""
    level = "Pendulum-v1"
    config = Config(level_name=level, unroll_length=5, box_policy="normal")
    algorithm = in_process.make(config)
    algorithm._policy_head._linear.b.assign([4.0])
    taken, vector = [], make_environments(level, 3, seed=0)
    for environment in vector._environments:
        environment.unwrapped.step = _keeping(environment.unwrapped.step, taken)
    played = UnrollPlayer(algorithm, [(vector, 3)]).play()
    entries = in_process.decoded(UnrollCodec(algorithm.unroll), tf.constant(played)).unrolls
    drawn = entries.action.numpy()[~entries.first.numpy()]
    assert drawn.shape == (15, 1)
    assert drawn.min() > 1.5
    assert len(np.unique(drawn)) == 15
    assert [float(action) for action in np.ravel(taken)] == [2.0] * 15
    read = vector.spec.actions.features(tf.constant(drawn), tf.zeros([15], tf.bool))
    np.testing.assert_array_equal(read, np.ones([15, 1]))
    behaviour = algorithm._distribution.make(entries.extras).log_prob(entries.action)
    expected = stats.norm(4.0, 0.6).logpdf(entries.action.numpy()[..., 0])
    live = ~entries.first.numpy()
    np.testing.assert_allclose(behaviour.numpy()[live], expected[live], atol=0.02)


def _keeping(step, taken):
    """Return a method `step` that also appends its actions to a list."""
    return lambda action: (taken.append(action.copy()), step(action))[1]


def test_advantages_are_scaled_as_if_one_learner_had_all_columns():
    """The columns' rewards differ in size, so that each learner's own scale would be another."""
    settings = {"unroll_length": 5, "loss_reduction": "mean", "optimizer": "rmsprop"}
    settings |= {"reward_clipping": "none"}

    def learn(joined):
        algorithm, exchange = in_process.made("impala", "Pendulum-v1", group=joined, **settings)
        in_process.fill(algorithm.variables.trained, spread=0.2)
        batch = in_process.random_batch(algorithm, 6, 6)
        batch.unrolls.reward[:] *= np.float32([1, 5, 9, 20, 0, 3])
        batch = in_process.tensors(batch, np.arange(6)[in_threads.share_of(joined, 6)])
        context = Context(*tf.constant([0.0, 1e9, 0.0]))
        algorithm.update(batch, context, exchange)
        return in_threads.arrays(algorithm.variables.trained)

    in_threads.assert_several_are_one(learn, tolerance=1e-4)


ELITE = "queue:0.5,elite:0.5:100"


def _played(level="catch", **settings):
    """Return (config, algorithm, a batch of four unrolls that it has just played)."""
    config = Config.of_algorithm("impala")(
        level_name=level, unroll_length=5, batch_size=4, num_envs=4, **settings
    )
    algorithm = in_process.make(config)
    contents = UnrollPlayer(algorithm, [(make_environments(level, 4, seed=0), 4)]).play()
    batch = in_process.decoded(UnrollCodec(algorithm.unroll), tf.constant(contents))
    return config, algorithm, batch


@pytest.mark.parametrize(
    ("level", "settings"),
    [
        ("catch", {}),
        ("memory", {"agent_name": "MLPGTrXLAgent", "gtrxl_memory": 7}),
        ("Pendulum-v1", {"separate_networks": True}),
    ],
)
def test_features_of_an_unchanged_policy_are_those_that_it_recorded(level, settings):
    _, algorithm, batch = _played(level, replay=ELITE, **settings)
    found, present = algorithm.compare_features(batch.unrolls, batch.start)
    assert found.shape == (5, 4, algorithm._network.num_features)
    assert float(tf.math.reduce_std(found)) > 0
    np.testing.assert_allclose(found, present, atol=1e-5)
    for variable in algorithm.variables.trained:
        variable.assign(variable + 0.1)
    found, present = algorithm.compare_features(batch.unrolls, batch.start)
    assert float(tf.reduce_max(tf.abs(found - present))) > 0.01


def test_an_update_is_the_same_whatever_is_recorded_besides():
    weights = []
    for settings in ({}, {"replay": ELITE}):
        config, algorithm, batch = _played(**settings)
        alone = gradients.GradientReducer(group.SingleLearner(), config)
        context = Context(tf.constant(0.0), tf.ones([]), tf.constant(0.0))
        metrics, priorities = algorithm.update(batch, context, alone)
        assert priorities.shape == (4,)
        assert (priorities.numpy() > 0).all()
        assert np.isfinite(metrics["loss/total"])
        weights.append([v.numpy() for v in algorithm.variables.trained])
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_priority_of_an_unroll_is_the_mean_distance_of_its_values_from_their_targets():
    """Steps that a reset makes, and unrolls of weight 0, add nothing; T divides all the same."""
    _, algorithm, batch = _played()
    first = batch.unrolls.first.numpy()
    first[3, 1] = True
    entries = batch.unrolls._replace(first=tf.constant(first))
    batch = batch._replace(unrolls=entries, weight=tf.constant([1.0, 1.0, 0.5, 0.0]))
    found = impala_by_numpy.learnt(algorithm, batch)
    errors = found.targets - found.values
    assert 0 < (errors > 0)[found.live].mean() < 1
    expected = np.where(found.live, np.abs(errors), 0).mean(0)
    priorities = algorithm._loss(Begun(batch, (), 0.0, {}), None, NO_FEATURES)[-1]
    np.testing.assert_allclose(priorities, expected, rtol=1e-4, atol=1e-6)
    assert expected[3] == 0
