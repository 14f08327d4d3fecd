"""A learner on a recorded stream of unrolls: python tests/helpers/resuming.py LOGDIR UPDATES KIND.

It makes UPDATES updates, slowly, so that it can save after each, and then waits for SIGKILL. Update
u uses batch u of the stream, so that a resumed run uses the same batches as an uninterrupted one.
"""

import functools
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import tensorflow as tf
from processes import free_port

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.impala import settings as impala_settings
from impala_mm.algorithms.interface import defines
from impala_mm.algorithms.make import make_algorithm
from impala_mm.algorithms.q_learning import settings as q_settings
from impala_mm.algorithms.q_policy import settings as sac_settings
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.data.variables import ParameterLayout
from impala_mm.distributed import group
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.learner.learner import Learner, RunLimits
from impala_mm.learner.monitor import LearnerMonitor, RecordKeeper
from impala_mm.learner.own_state import OwnState
from impala_mm.learner.run_status import RunStatus
from impala_mm.learner.sources.batch_source import QueueSource
from impala_mm.learner.sources.own import OwnSource
from impala_mm.learner.train_step import UpdateProfiler
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.outputs import EventHook, RunOutputs
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.server import Server

ALL, BATCH = 20, 4
_SAME = {"level_name": "memory", "batch_size": BATCH, "save_checkpoint_secs": 0}
_SAME |= {"total_environment_frames": 1e6, "agent_name": "MLPLSTMAgent"}
_TARGET = {"target_period": 4, "target_share": 1.0}  # copied at update 8, and not at update 10
CONFIGS = {
    "impala": impala_settings.ImpalaSettings(**_SAME, target_entropy=0.5, target_kl_mu_pi=0.001),
    "r2d2": q_settings.R2D2Settings(**_SAME, **_TARGET, algorithm="r2d2", burn_in=4),
    "dqn": q_settings.DQNSettings(
        **_SAME | _TARGET | {"agent_name": "auto"}, algorithm="dqn", noisy=True,
        value_distribution="quantiles",
    ),
    "sac": sac_settings.SACSettings(
        **_SAME | {"agent_name": "auto", "level_name": "Pendulum-v1"}, algorithm="sac",
        reward_clipping="none", mlp_sizes="16", unroll_length=4, minibatch_steps=16,
        random_steps=0, replay_save=True, compile_updates=False,
    ),
}  # fmt: skip


class Stream(QueueSource):
    """A source that returns batch u for update u, up to a number of updates."""

    def __init__(self, learner, contents, codec, updates, pause):
        self._learner, self._contents, self._codec = learner, contents, codec
        self._until, self._next, self._pause = updates, None, pause

    def next(self, timeout):
        number = self._learner().updates if self._next is None else self._next
        if number >= self._until:
            time.sleep(timeout)
            return None
        self._next = number + 1
        time.sleep(self._pause)
        entries, start = self._codec.decode(tf.constant(self._contents[number]))
        key = tf.range(BATCH, dtype=tf.int64)
        return Batch(entries, start, key, tf.ones([BATCH]), key * 0, tf.ones([BATCH], tf.bool))


def record(kind):
    """Return ALL batches of unrolls, played by an untrained policy of an algorithm."""
    tf.random.set_seed(5)
    environments = make_environments(CONFIGS[kind].level_name, BATCH, seed=5)
    player = UnrollPlayer(_algorithm(kind), [(environments, BATCH)])
    return [player.play() for _ in range(ALL)]


def train(kind, logdir, updates, contents, say=print, pause=0.0, folder=None, outputs=None):
    """Return a learner that resumes and trains up to `updates` updates, and its monitor.

    It makes a `pause` of some seconds before each update. `folder` and `outputs` are the run's.
    """
    tf.random.set_seed(1)
    config, algorithm = CONFIGS[kind], _algorithm(kind)
    address = f"127.0.0.1:{free_port()}"
    server = Server(address, HeldAddress(address), "token", {"run_id": "r"}, 1, lambda event: None)
    limits = RunLimits(config, None)
    source = Stream(lambda: learner, contents, UnrollCodec(algorithm.unroll), updates, pause)
    own_state = None
    if defines(make := algorithm.source):
        source = OwnSource(make, source, algorithm.unroll)
        own_state = OwnState(logdir, 0, 1, source, [], say)
    layout = ParameterLayout(algorithm.variables.acting, algorithm.variables.trained, "float32")
    profile = UpdateProfiler("", logdir, say)
    outputs = outputs or RunOutputs(say, EventHook("", logdir, say), None)
    alone = group.SingleLearner()
    learner = Learner(
        config, algorithm, alone, source, server, layout, limits, 1, profile, own_state
    )
    checkpoints = Checkpoints(logdir, algorithm.variables, keep=2)
    about = CheckpointInfo(1, {}, {}, {})
    status = RunStatus(learner, {config.level_name: level_spec(config.level_name)}, say)
    saves = Checkpointing(status, checkpoints, about, outputs.event_hook)
    # Without a lock: one process resumes it.
    here = folder or SimpleNamespace(path=logdir, why_lost=str)
    keeper = RecordKeeper(status, MetricsWriter(logdir, say), saves, outputs, here)
    watch = LearnerMonitor(status, keeper)
    watch.resume()
    return learner, watch


def _algorithm(kind):
    return make_algorithm(CONFIGS[kind], level_spec(CONFIGS[kind].level_name))


if __name__ == "__main__":
    folder, until = Path(sys.argv[1]), int(sys.argv[2])
    stream = [
        [bytes.fromhex(unroll) for unroll in line.split()]
        for line in (folder / "stream").read_text().splitlines()
    ]
    say = functools.partial(print, flush=True)
    _, watching = train(sys.argv[3], folder, until, stream, say, 0.3)
    watching.run(lambda: None)
