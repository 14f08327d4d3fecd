"""What actors record with their actions, and what the learner computes from it."""

import in_process
import numpy as np
import pytest
import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.feature import NO_FEATURES
from impala_mm.algorithms.interface import Context
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.distributed import gradients, group
from impala_mm.environments.make import make_environments
from tests.helpers import impala_by_numpy

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
        ("memory", {"agent_name": "MLPLSTMAgent"}),
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
    priorities = algorithm._loss(batch, None, NO_FEATURES, ())[-1]
    np.testing.assert_allclose(priorities, expected, rtol=1e-4, atol=1e-6)
    assert expected[3] == 0
