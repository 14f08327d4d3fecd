"""A learner's published parameters, and its messages for internal errors."""

import math
from types import SimpleNamespace

import in_process
import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec
from impala_mm.data.variables import ParameterLayout, Variables
from impala_mm.distributed import group
from impala_mm.environments.make import make_environments
from impala_mm.learner.learner import Learner, RunLimits, between_updates, root_message
from impala_mm.learner.lockstep import UNKNOWN, AgreedStep
from impala_mm.learner.sources.batch_source import RECORDED, BatchSource, Composition
from impala_mm.learner.train_step import GradientNotFinite, UpdateProfiler
from impala_mm.runtime import starter


class Two(group.SingleLearner):
    """A group of two learners that do the same."""

    size = 2


def _learner(config, algorithm, published, folder):
    """Return one of two learners; `published` receives (version, bytes, values)."""
    server = SimpleNamespace(
        publish=lambda version, pack, values: published.append((version, pack(), values)),
        fill=lambda: 0.0,
        inference_metrics=dict,
        actors=SimpleNamespace(take_reports=list),
    )
    layout = ParameterLayout(algorithm.variables.acting, algorithm.variables.trained, "float32")
    limits, profiler = RunLimits(config, None), UpdateProfiler("", folder, print)
    given = config, algorithm, Two(), BatchSource(), server, layout, limits
    return Learner(*given, action_repeats=1, profiler=profiler)


ONES = tf.ones([2])
BATCH = Batch(Entry(*[ONES] * len(Entry._fields)), (), *[ONES] * 3, ONES > 0)
AGREED = AgreedStep(BATCH, 2, 2, UNKNOWN, 0.0)


@pytest.mark.parametrize("repairs", [False, True])
def test_what_is_published_is_what_the_variables_are_after_update_and_repair(
    repairs, monkeypatch, tmp_path
):
    config = Config(level_name="catch", batch_size=2, unroll_length=3, check_sync_every=1)
    algorithm = in_process.make(config)
    acting = algorithm.variables.acting
    before = [variable.numpy() for variable in acting]
    played = UnrollPlayer(algorithm, [(make_environments("catch", 2, seed=0), 2)]).play()
    batch = in_process.decoded(UnrollCodec(algorithm.unroll), tf.constant(played))

    def check(group, variables):
        if repairs:
            variables[0].assign_add(tf.ones_like(variables[0]))
        return int(repairs)

    monkeypatch.setattr("impala_mm.learner.learner.check_variables", check)
    published = []
    learner = _learner(config, algorithm, published, tmp_path)
    learner._step(AgreedStep(batch, 6, 6, UNKNOWN, 0.0), batch)
    ((version, packed, values),) = published
    assert version == 1
    assert packed == b"".join(variable.numpy().tobytes() for variable in acting)
    for variable, value, old in zip(acting, values, before, strict=True):
        np.testing.assert_array_equal(value, variable)
        assert not np.array_equal(value, old)
    assert learner.sync_repairs == repairs


class Stepping(Algorithm):
    """An algorithm of two steps per update, of which one may not be finite."""

    unroll = SimpleNamespace(overlap=1)

    def __init__(self, bad_step):
        self._weight, self._optimizer = tf.Variable(0.0), snt.optimizers.SGD(1.0)
        self._bad, self._steps = bad_step, tf.Variable(0)
        self.variables = Variables([self._weight], [self._steps], [self._weight])

    def update(self, batch, context, exchange):
        def step(columns):
            bad = tf.equal(self._steps.assign_add(1), self._bad)
            exchange.apply(self._optimizer, [tf.where(bad, np.inf, 1.0)], [self._weight])
            return {"loss/total": 0.5}

        return exchange.minibatches(step, 2, epochs=1, count=2).metrics, batch.weight


def test_an_update_of_which_a_step_is_not_finite_is_neither_published_nor_saved(tmp_path):
    published = []
    learner = _learner(Config(), Stepping(bad_step=4), published, tmp_path)
    learner._step(AGREED, BATCH)
    with between_updates(learner) as may_save:
        assert may_save
    assert learner.meter.take_reading().sums["grad_norm"] == 1
    with pytest.raises(GradientNotFinite, match=r"^update 2 .*grad_norm = inf.*--learning_rate"):
        learner._step(AGREED, BATCH)
    with between_updates(learner) as may_save:
        assert not may_save
    assert learner.updates == len(published) == 1


def test_a_learner_alone_saves_its_own_state_while_no_batch_comes(tmp_path, monkeypatch):
    learner = _learner(Config(), Stepping(bad_step=0), [], tmp_path)
    learner.group, saved = group.SingleLearner(), []
    monkeypatch.setattr(learner, "save_own_state", lambda: saved.append(learner.updates))
    asked = [True, False]
    end = AgreedStep(None, 0, 0, UNKNOWN, 0.0)
    learner._lockstep = SimpleNamespace(
        next=lambda timeout: None if asked else end, takes_save=asked.pop, ready=0.0
    )
    learner._train()
    assert saved == [0]


@pytest.mark.parametrize(
    ("message", "short"),
    [
        (
            "Graph execution error:\n\nDetected at node MatMul defined at (last call last):\n"
            '  File "a.py", line 1, in <module>\n\nMatrix size-incompatible: In[0]\n'
            "\t [[{{node MatMul}}]]\nHint: If you want to see a list",
            "Matrix size-incompatible: In[0]",
        ),
        (
            "2 root error(s) found.\n  (0) INTERNAL:  the cable is cut\n\t [[{{node a}}]]\n"
            "  (1) INTERNAL:  so is the other\n0 successful operations.",
            "(0) INTERNAL:  the cable is cut",
        ),
    ],
)
def test_an_error_of_many_lines_is_said_in_the_one_that_counts(message, short):
    assert root_message(RuntimeError(message)) == short


def test_a_batchs_composition_is_counted_by_hand():
    """Two new unrolls, two replayed ones (one of an update that is still to come), and others."""
    composition = Composition()
    batch = BATCH._replace(
        version=np.array([9, 7, 3, 12, 5, 0]),
        weight=np.array([1, 1, 1, 0.5, 0, 1]),  # the fifth is padding
        key=np.array([0, 1, 2, 3, 4, RECORDED]),
        fresh=np.array([True, True, False, False, True, False]),
    )
    new = batch._replace(key=np.arange(6), fresh=np.ones(6, bool))
    assert composition.of(new, 9).keys() == {"policy_lag"}
    assert composition.of(batch, 9) == {
        "policy_lag": (0 + 2) / 2,
        "recorded_share": 1 / 5,
        "replay_share": 2 / 5,
        "replay_age": (6 + 0) / 2,
    }
    assert composition.of(new, 9)["replay_share"] == 0


@pytest.mark.parametrize(
    ("flags", "threshold", "limits"),
    [
        ({}, None, (50e6, math.inf)),
        ({}, 195.0, (50e6, 195.0)),
        ({"stop_at_return": 100.0}, 195.0, (50e6, 100.0)),
        ({"total_environment_frames": 1e6}, 195.0, (1e6, math.inf)),
    ],
)
def test_a_levels_threshold_ends_a_run_that_has_no_limit_of_its_own(flags, threshold, limits):
    found = RunLimits(Config(**flags), threshold)
    assert (found.frames, found.episode_return) == limits


@pytest.mark.parametrize(("num_actors", "started", "ends"), [(0, "", 9), (2, "0", 9), (2, "2", 0)])
def test_a_run_without_actors_ends_after_its_updates_from_recorded_games(
    monkeypatch, num_actors, started, ends
):
    """The frontend starts the actors of its CSV, whatever the flag says."""
    monkeypatch.setenv(starter.ACTORS_VARIABLE, started)
    settings = Config.of_algorithm("iql")
    limits = RunLimits(
        settings(algorithm="iql", teacher_data="x", offline_updates=9, num_actors=num_actors), None
    )
    assert limits.why_reached(0.0, math.nan, 8) == ""
    assert bool(limits.why_reached(0.0, math.nan, 9)) == bool(ends)
