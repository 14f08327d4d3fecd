"""The interface of algorithms with a source of batches of the test's own, with priorities."""

from types import SimpleNamespace

import dqn_like
import numpy as np
import pytest
import tensorflow as tf
from processes import free_port

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.data.variables import ParameterLayout
from impala_mm.distributed import group
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.learner.learner import Learner, RunLimits
from impala_mm.learner.monitor import LearnerMonitor, RecordKeeper
from impala_mm.learner.run_status import RunStatus
from impala_mm.learner.sources.batch_source import BatchSource
from impala_mm.learner.train_step import UpdateProfiler
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.outputs import EventHook, RunOutputs
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.server import Server

UPDATES, BATCH, HELD = 30, 4, 32


class Prioritised(BatchSource):
    """A source that draws from its unrolls by the priorities of the last update."""

    def __init__(self, entries, exponent):
        self._entries, self._exponent = entries, exponent
        self._priorities = np.ones(HELD)
        self._random = np.random.default_rng(0)
        self.drawn, self.fed_back = [], []

    def next(self, timeout):
        weights = self._priorities**self._exponent
        keys = self._random.choice(HELD, BATCH, replace=False, p=weights / weights.sum())
        self.drawn.append(keys)
        unrolls = tf.nest.map_structure(lambda x: tf.gather(x, keys, axis=1), self._entries)
        # They count as played, so that the run ends at its number of frames.
        version, fresh = tf.zeros([BATCH], tf.int64), tf.ones([BATCH], tf.bool)
        return Batch(unrolls, (), tf.constant(keys, tf.int64), tf.ones([BATCH]), version, fresh)

    def feedback(self, keys, priorities):
        assert priorities.shape == [BATCH]
        self.fed_back.append(keys.numpy())
        self._priorities[keys.numpy()] = priorities.numpy() + 1e-3


@pytest.fixture(scope="module")
def entries():
    """Return unrolls [T+1, HELD] of Catch, by an untrained policy."""
    config = Config(level_name="catch")
    spec = level_spec("catch")
    algorithm = dqn_like.make(config, spec)
    player = UnrollPlayer(algorithm, [(make_environments("catch", HELD, seed=0), HELD)])
    return UnrollCodec(algorithm.unroll).decode(tf.constant(player.play()))[0]


def _train(entries, exponent, folder):
    config = Config(level_name="catch", learning_rate=1e-3, batch_size=BATCH)
    spec = level_spec("catch")
    tf.random.set_seed(1)
    algorithm = dqn_like.make(config, spec)
    source = Prioritised(entries, exponent)
    address = f"127.0.0.1:{free_port()}"
    server = Server(address, HeldAddress(address), "token", {"run_id": "r"}, 1, lambda event: None)
    limits = RunLimits(config, None)
    limits.frames = UPDATES * BATCH * 15
    layout = ParameterLayout(algorithm.variables.acting, algorithm.variables.trained, "float32")
    alone = group.SingleLearner()
    say = lambda message: None  # noqa: E731
    profile = UpdateProfiler("", folder, say)
    learner = Learner(config, algorithm, alone, source, server, layout, limits, 1, profile)
    checkpoints = Checkpoints(folder, algorithm.variables, keep=3)
    events, about = EventHook("", folder, say), CheckpointInfo(1, {}, {}, {})
    status = RunStatus(learner, {"catch": spec}, say)
    saves = Checkpointing(status, checkpoints, about, events)
    here = SimpleNamespace(path=folder, why_lost=str)  # without a lock: one process resumes it
    outputs = RunOutputs(say, events, None)
    keeper = RecordKeeper(status, MetricsWriter(folder, say), saves, outputs, here)
    watch = LearnerMonitor(status, keeper)
    return source, watch.run(lambda: None)


def test_priorities_come_back_for_the_batch_they_belong_to_and_steer_what_is_drawn(
    entries, tmp_path
):
    """Every key with a priority was in its batch; priorities change the columns drawn."""
    folders = tmp_path / "uniform", tmp_path / "greedy"
    for folder in folders:
        folder.mkdir()
    uniform, row = _train(entries, 0.0, folders[0])
    greedy, _ = _train(entries, 3.0, folders[1])
    for source in (uniform, greedy):
        # The next batch is drawn while the learner trains on the previous one.
        assert len(source.drawn) - 2 <= len(source.fed_back) > 20
        for drawn, fed_back in zip(source.drawn, source.fed_back, strict=False):
            np.testing.assert_array_equal(fed_back, drawn)
    assert row["updates"] == len(uniform.fed_back)
    np.testing.assert_array_equal(uniform.drawn[0], greedy.drawn[0])  # all were 1 then
    assert not np.array_equal(np.concatenate(uniform.drawn[:20]), np.concatenate(greedy.drawn[:20]))
