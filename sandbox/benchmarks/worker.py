"""A process that measures its own CPU time for one task after another.

    python sandbox/benchmarks/worker.py THREADS [flags of experiment.py]

`worker_client.py` starts it. With THREADS of 0 it has the threads and the priority of a learner
that is alone on its host; otherwise it has the low priority of an actor. It reads one line of JSON
per request and answers with one line: `{"prepare": "training", "batch": 8}` prepares and warms up a
task, unless it is prepared already; `{"measure_seconds": SECONDS, "task": ...}` measures it, so
that several of these processes can measure side by side and repeatedly; with `"interval": SECONDS`
the starts of two runs of the task are at least this far apart. `{}` returns the CPU time so far.

`receive_unrolls` with `send_unrolls` and `pull_parameters`, and `serve_inference` with
`request_actions`, are the two ends of the wire (`wire_ends.py`), each in its own process.
"""

import dataclasses
import itertools
import json
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from impala_mm.runtime import lifecycle

_THREADS = int(sys.argv.pop(1)) if __name__ == "__main__" else 1
lifecycle.load_tensorflow(_THREADS, _THREADS)

import numpy as np
import tensorflow as tf
from random_actions import random_actions
from wire_ends import PreparedTask, WireTasks

from impala_mm.actor.acting import Act
from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms import agent
from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config import auto, command_line, replay_mix
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.distributed import group
from impala_mm.environments.atari import vector
from impala_mm.learner import start
from impala_mm.learner.learner import Learner, RunLimits
from impala_mm.learner.sources import replay
from impala_mm.learner.sources.batch_source import BatchSource
from impala_mm.learner.sources.own import OwnSource
from impala_mm.learner.train_step import TrainStep, UpdateProfiler
from impala_mm.replay.source import ReplaySource
from impala_mm.runtime import devices
from impala_mm.runtime.starter import process_rank


class WorkerTasks(WireTasks):
    """All tasks: the ends of the wire, and the computation of actors and learners."""

    def __init__(self, config: Config, threads: int):
        super().__init__(config)
        self._threads = threads
        self._training: agent.Agent | None = None

    def environment(self, batch: int) -> PreparedTask:
        """Step `batch` environments with random actions."""
        open_vector = vector.open_vector
        vector.open_vector = lambda *a, **k: open_vector(*a, **{"num_threads": self._threads} | k)
        try:
            environments = self._make_environments(batch, int.from_bytes(os.urandom(3)))
        finally:
            vector.open_vector = open_vector
        environments.reset()
        actions = itertools.cycle(random_actions(environments.spec.actions, batch, 1000))

        def step() -> None:
            environments.step(next(actions))
            environments.episodes()

        return step, batch

    def inference(self, batch: int) -> PreparedTask:
        """Act on `batch` observations and keep the state, as actors and learners do."""
        algorithm = self._acting.algorithm
        self.details = {"precision": self._precision_name(agent.config_for_acting(self._config))}
        act, entry = Act(algorithm, batch), self._random_entries([batch])
        state = tf.nest.flatten(algorithm.initial_state(batch))
        number = [tf.range(batch), tf.constant(batch)]

        def once() -> None:
            nonlocal state
            _, state, _ = act(entry, state, number)

        return once, batch

    def training(self, batch: int) -> PreparedTask:
        """Make updates from one batch of `batch` unrolls, again and again."""
        training_setup, source = self._training_inputs(batch)
        given = _next_batch(source)
        self.details = {"precision": self._precision_name(self._config)}
        update = TrainStep(
            training_setup.algorithm,
            group.SingleLearner(),
            self._config,
            training_setup.layout.values,
        )
        new = self._new_unrolls(batch) * training_setup.algorithm.unroll.length
        return lambda: update(given, 0.0, 1e9, 0.0), new

    def train_as_learner(self, batch: int) -> PreparedTask:
        """Make updates as a learner does: they are counted and published to actors.

        With replay, only the new steps of a batch count.
        """
        training_setup, batches = self._training_inputs(batch)
        algorithm, layout, *_ = training_setup
        config = dataclasses.replace(self._config, total_environment_frames=math.inf)
        source, limits = _AllowedBatches(batches), RunLimits(config, None)
        profiler = UpdateProfiler("", Path(), print)
        learner = Learner(
            config,
            algorithm,
            group.SingleLearner(),
            source,
            self._make_server(1),
            layout,
            limits,
            1,
            profiler,
        )
        learner.prepare_training(lambda: math.nan)
        learner.start()
        source.allowed.release()  # a batch is prepared during the previous update

        def once() -> None:
            source.allowed.release()
            while not source.done.acquire(timeout=0.5):
                assert not learner.end_reason, learner.end_reason

        self.details = {"new_unrolls": self._new_unrolls(batch)}
        return once, self._new_unrolls(batch) * algorithm.unroll.length

    def _new_unrolls(self, batch: int) -> float:
        """Return the new unrolls of an update: fewer than `batch`, if it replays others."""
        config = self._config
        if not config.replay:
            return batch
        mix = replay_mix.parse(config.replay)
        return 1 / replay_mix.updates_per_unroll(mix, batch, config.replay_ratio)

    def _training_inputs(self, batch: int) -> tuple[agent.Agent, BatchSource]:
        """Return the agent to train, and a source of batches to train on."""
        self._training = self._training or agent.make_agent(self._config, 0)
        algorithm = self._training.algorithm
        if self._config.replay:
            return self._training, self._replay(algorithm, batch)
        spec = algorithm.unroll
        entries = self._random_entries([spec.length + spec.overlap, batch])
        start = tf.nest.map_structure(tf.convert_to_tensor, algorithm.initial_state(batch))
        ones = tf.ones([batch])
        unrolls = tf.nest.map_structure(tf.constant, entries)
        keys = tf.range(batch, dtype=tf.int64)
        unroll_batch = Batch(unrolls, start, keys, ones, tf.zeros([batch], tf.int64), ones > 0)
        source = _RepeatedBatch(unroll_batch)
        make = algorithm.source if defines(algorithm.source) else None
        return self._training, make(source) if make else source

    def _replay(self, algorithm: Algorithm, batch: int) -> BatchSource:
        """Return the source that --replay asks for, in memory, which always finds new unrolls."""
        config = auto.for_task(self._config, self._acting.spec)
        # It would take unrolls for ever, if the learner had to wait for none.
        changed = {"batch_size": batch, "replay_spill": "", "replay_overflow": "wait"}
        config, codec = dataclasses.replace(config, **changed), UnrollCodec(algorithm.unroll)
        device = devices.training_device()
        position = replay.Position(lambda: 0, lambda: 0.0)
        run = replay.RunOnHost(Path(), is_new=True)

        def make(queue: Any) -> ReplaySource:
            return replay.make_source(
                *(config, algorithm, queue, codec, device, position, run, process_rank()),
                say=lambda line: None,
            )

        played = self._play_unrolls(config.num_envs)
        return OwnSource(make, _EndlessUnrolls(played), algorithm.unroll, device)

    def cut_unrolls(self, batch: int) -> PreparedTask:
        """Cut the steps of `batch` environments into unrolls; an unroll counts as one step."""
        algorithm = self._acting.algorithm
        state = tf.nest.flatten(algorithm.initial_state(batch))
        writer = UnrollWriter(algorithm.unroll, batch, algorithm.initial_state(batch))

        def once() -> None:
            writer.set_start_state(state)
            writer.take_unrolls()

        return once, batch

    def play(self, batch: int) -> PreparedTask:
        """Do all the work of an actor's main thread, including cutting unrolls."""
        return self._prepare_player([batch])

    def play_in_turns(self, batch: int) -> PreparedTask:
        """Do the same with groups that take turns, and with the threads that step them."""
        return self._prepare_player(auto.split_evenly(batch, min(batch, self._config.env_groups)))

    def _prepare_player(self, sizes: list[int]) -> PreparedTask:
        algorithm = self._acting.algorithm
        groups = [
            (self._make_environments(size, int.from_bytes(os.urandom(3))), size) for size in sizes
        ]
        player = UnrollPlayer(algorithm, groups)
        return lambda: (player.play(), player.episodes()), sum(sizes) * algorithm.unroll.length

    def load_parameters(self, batch: int) -> PreparedTask:
        """Assign downloaded parameters; one assignment counts as one step."""
        del batch
        layout = self._acting.layout
        packed = layout.pack(layout.values())
        self.details = {"trained": self._acting.weights}
        return lambda: layout.assign_bytes(packed), 1

    def _precision_name(self, config: Config) -> str:
        return devices.resolve_precision(config.precision, self._acting.spec.observation)

    def _random_entries(self, shape: list[int]) -> Entry:
        """Make entries [*shape, ...] with noise for images, and without ends of episodes."""
        random = np.random.default_rng(0)

        def make(spec: tf.TensorSpec) -> np.ndarray:
            full = [*shape, *spec.shape]
            if spec.dtype == tf.uint8:
                return random.integers(256, size=full, dtype=np.uint8)
            return np.zeros(full, spec.dtype.as_numpy_dtype)

        return tf.nest.map_structure(make, self._acting.algorithm.unroll.step)


class _RepeatedBatch(BatchSource):
    """A source that always returns the same batch."""

    def __init__(self, batch: Batch):
        self._batch = batch

    def next(self, timeout: float) -> Batch | None:
        return self._batch


class _EndlessUnrolls:
    """A queue of actors' unrolls that is never empty."""

    def __init__(self, contents: list[bytes]):
        self._contents = itertools.cycle(contents)

    def size(self) -> int:
        return 1

    def take(self, number: int) -> tuple[list[bytes], list[int]]:
        return [*itertools.islice(self._contents, number)], [0] * number


class _AllowedBatches(BatchSource):
    """The batches of a source, each once it is allowed."""

    def __init__(self, source: BatchSource):
        self._source = source
        self.allowed, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def next(self, timeout: float) -> Batch | None:
        return _next_batch(self._source) if self.allowed.acquire(timeout=timeout) else None

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        self._source.feedback(keys, priorities)
        self.done.release()


def _next_batch(source: BatchSource) -> Batch:
    """Return a source's next batch; a replay takes several batches to be filled."""
    while (batch := source.next(0.1)) is None:
        pass
    return batch


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # all other output goes to stderr
    (config,), _ = command_line.parse(sys.argv, __doc__ or "", Config)
    if _THREADS:
        lifecycle.lower_priority()
    else:
        start.find_levels_and_device(config)
    tasks = WorkerTasks(config, _THREADS)
    ready: dict[tuple[str, int], PreparedTask] = {}
    for line in sys.stdin:
        message = json.loads(line)
        if task := message.pop("prepare", ""):
            tasks.details = {}
            if (task, message["batch"]) not in ready:
                once, steps = ready[task, message["batch"]] = getattr(tasks, task)(**message)
                once(), once()
            answer = tasks.details
        elif "measure_seconds" in message:
            once, steps = ready[message["task"], message["batch"]]
            count, begin, cpu = 0, time.monotonic(), time.process_time()
            while time.monotonic() - begin < message["measure_seconds"] or count < 2:
                once()
                count += 1
                remaining = begin + count * message.get("interval", 0.0) - time.monotonic()
                if remaining > 0:  # even a sleep of zero seconds takes time
                    time.sleep(remaining)
            answer = {"cpu": time.process_time() - cpu, "steps": count * steps}
        else:
            answer = {"cpu": time.process_time()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
