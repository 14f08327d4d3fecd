"""A process that measures its own CPU time for one task after another.

    python sandbox/benchmarks/worker.py THREADS [flags of experiment.py]

`worker_client.py` starts it, with the low priority of an actor. It reads one line of JSON per
request and answers with one line: `{"prepare": "training", "batch": 8}` prepares and warms up a
task, unless it is prepared already; `{"measure_seconds": SECONDS, "task": ...}` measures it, so
that several of these processes can measure side by side and repeatedly. `{}` returns the CPU time
so far. `receive_unrolls` with `send_unrolls` and `pull_parameters` are the two ends of the wire,
each in its own process.
"""

import dataclasses
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impala_mm.runtime import lifecycle

_THREADS = int(sys.argv.pop(1)) if __name__ == "__main__" else 1
lifecycle.load_tensorflow(_THREADS, _THREADS)

import numpy as np
import real_run
import tensorflow as tf

from impala_mm.actor.acting import Act
from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms import agent
from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config import auto, command_line, replay_mix
from impala_mm.config.settings import Config
from impala_mm.data.compression import COMPRESSORS
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.distributed import group
from impala_mm.environments import from_flags
from impala_mm.environments.atari import vector
from impala_mm.environments.make import make_environments
from impala_mm.learner.sources import replay
from impala_mm.learner.sources.batch_source import BatchSource, QueueSource
from impala_mm.learner.sources.own import OwnSource
from impala_mm.learner.train_step import TrainStep
from impala_mm.replay.source import ReplaySource
from impala_mm.runtime import devices
from impala_mm.runtime.ports import HeldAddress
from impala_mm.runtime.starter import process_rank
from impala_mm.transport.client import Client
from impala_mm.transport.messages import Reply
from impala_mm.transport.server import Server

PreparedTask = tuple[Callable[[], object], float]  # (function that runs it once, steps of one run)
_TOKEN = "measured"


class WorkerTasks:
    """The tasks of actors and learners, and those at both ends of the wire."""

    def __init__(self, config: Config, threads: int):
        self._config = config
        self._acting = agent.make_agent(agent.config_for_acting(config), 0)
        level = self._level = next(iter(self._acting.levels))
        self._make_environments = lambda envs, seed: make_environments(
            level, envs, seed, **from_flags.environment_options(config)
        )
        self._threads = threads
        self.details: dict[str, Any] = {}  # what the last prepared task reports
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
        random, sample = np.random.default_rng(0), environments.spec.actions.sample
        actions = itertools.cycle([sample(batch, (), random) for _ in range(1000)])

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
        config = dataclasses.replace(config, **changed)
        position = replay.Position(lambda: 0, lambda: 0.0)
        run = replay.RunOnHost(Path(), is_new=True)

        def make(queue: Any) -> ReplaySource:
            of = algorithm, queue, position, run, process_rank()
            return replay.make_source(config, *of, say=lambda line: None)

        played = self._play_unrolls(config.num_envs)
        return OwnSource(make, _EndlessUnrolls(played), algorithm.unroll)

    def cut_unrolls(self, batch: int) -> PreparedTask:
        """Cut the steps of `batch` environments into unrolls; an unroll counts as one step."""
        algorithm = self._acting.algorithm
        state = tf.nest.flatten(algorithm.initial_state(batch))
        writer = UnrollWriter(algorithm.unroll, batch, algorithm.initial_state(batch))

        def once() -> None:
            writer.set_start_state(state)
            writer.take_unrolls()

        return once, batch

    def publish_parameters(self, batch: int) -> PreparedTask:
        """Pack the parameters and publish them for actors; one publication counts as one step."""
        del batch
        server = self._make_server(1)
        layout, numbers = self._acting.layout, iter(range(10**9))
        self.details = {"parameter_bytes": len(layout.pack(layout.values()))}

        def once() -> None:
            packed = layout.pack(layout.values())  # as for a version that an actor pulls
            server.publish(next(numbers), lambda: packed)

        return once, 1

    def receive_unrolls(self, batch: int) -> PreparedTask:
        """Serve actors, publish a policy, and make batches of the unrolls that arrive."""
        server, layout = self._make_server(batch), self._acting.layout
        values = layout.values()
        server.publish(0, lambda: layout.pack(values), values)
        source = QueueSource(server.queue, UnrollCodec(self._acting.algorithm.unroll), batch)

        def drain() -> None:
            try:
                while not server._closed:
                    source.next(0.2)
            except Exception:  # of any kind: the sender would wait for ever
                traceback.print_exc()
                os._exit(1)

        threading.Thread(target=drain, daemon=True).start()
        self.details = {"address": self._address}
        return lambda: server, 1

    def send_unrolls(self, batch: int, address: str) -> PreparedTask:
        """Compress `batch` unrolls and send them in one message, until the learner has them."""
        client = self._connect(address)
        contents, numbers = self._play_unrolls(batch), iter(range(10**9))
        step = self._acting.algorithm.unroll.step
        pack = COMPRESSORS[auto.compression(self._config, step.observation)]
        self.details = {"unroll_bytes": sum(map(len, map(pack, contents))) / batch}
        header = client.header(actor=0, incarnation=1)

        def once() -> None:
            packed = [pack(content) for content in contents]
            reply = client.enqueue(
                header._replace(number=next(numbers)), packed, np.zeros([0, 3], np.float32)
            )
            assert reply == Reply.ACCEPTED, reply

        return once, batch

    def pull_parameters(self, batch: int, address: str) -> PreparedTask:
        """Download the parameters."""
        del batch
        client = self._connect(address)

        def once() -> None:
            assert client.get_parameters()

        return once, 1

    def _play_unrolls(self, batch: int) -> list[bytes]:
        """Play unrolls, so that they compress like those of a real run."""
        environments = self._make_environments(batch, 1)
        try:
            return UnrollPlayer(self._acting.algorithm, [(environments, batch)]).play()[:batch]
        finally:
            environments.close()

    def _make_server(self, batch: int) -> Server:
        self._address = real_run.free_address()
        return Server(
            self._address,
            HeldAddress(self._address),
            _TOKEN,
            self._acting.identity | {"run_id": "measured", "inference": "actor"},
            2 * batch,
            lambda message: None,
            unroll_bytes=UnrollCodec(self._acting.algorithm.unroll).size,
        )

    def _connect(self, address: str) -> Client:
        client = Client(address, _TOKEN)
        me = {"actor": 0, "level": self._level, "incarnation": 1, "inference": "actor"}
        client.hello(self._acting.identity | {"run_id": "measured", "host": "here"} | me)
        return client

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
    lifecycle.lower_priority()
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
            answer = {"cpu": time.process_time() - cpu, "steps": count * steps}
        else:
            answer = {"cpu": time.process_time()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
