"""A process that measures its own CPU time of one part after another, as `components.py` asks.

    python sandbox/benchmarks/worker.py THREADS [flags of experiment.py]

THREADS of 0: those that a learner has which is alone on its host. Others give way, as actors do.
A line of JSON comes in, one goes out: `{"prepare": "training", "batch": 8}` makes a part ready and
warm, unless it is; `{"go": SECONDS, "part": ...}` measures it, so that several of
these processes can measure side by side, and again later; with `"every": SECONDS` it begins no
sooner after it began. `{}` asks for the CPU time so far.
`serve`, `send` and `pull` are the two ends of the wire (`ends.py`), in a process each, and so are
`attend` and `asking`.
"""

import dataclasses
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
from wire_ends import Call, Ends

from impala_mm.actor.actor import Player
from impala_mm.algorithms import agent
from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.data.unroll_writer import Assembly
from impala_mm.distributed import group
from impala_mm.environments.atari import vector as atari
from impala_mm.learner import setup
from impala_mm.learner.learner import Learner, Update
from impala_mm.learner.limits import Limits
from impala_mm.learner.profiler import Profile
from impala_mm.runtime import devices


class Parts(Ends):
    """What is not the wire's."""

    def __init__(self, config: Config, threads: int):
        super().__init__(config)
        self._threads = threads
        self._training: agent.Agreement | None = None

    def environment(self, batch: int) -> tuple[Call, int]:
        """Steps `batch` environments by random actions."""
        opened = atari.open_vector
        atari.open_vector = lambda *a, **k: opened(*a, **{"num_threads": self._threads} | k)
        try:
            playing = self._open(batch, int.from_bytes(os.urandom(3)))
        finally:
            atari.open_vector = opened
        playing.reset()
        random = np.random.default_rng(0)
        actions = random.integers(playing.spec.num_actions, size=[1000, batch]).astype(np.int32)
        turn = iter(range(10**9))

        def step() -> None:
            playing.step(actions[next(turn) % 1000])
            playing.episodes()

        return step, batch

    def inference(self, batch: int) -> tuple[Call, int]:
        """Acts on `batch` observations and carries the state on, as actors and learners do."""
        algorithm = self._acting.algorithm
        self.said = {"precision": self._computes_in(agent.acting(self._config))}
        state = algorithm.initial_state(batch)
        exploration = tf.ones([batch])
        entry = tf.nest.map_structure(tf.constant, self._entry([batch]))
        read = (entry.observation, entry.reward, entry.action, entry.first)

        @tf.function(autograph=False)
        def act(observation: Any, reward: Any, action: Any, first: Any, *flat: Any) -> Any:
            known = Entry(action, reward, None, None, observation, first, None)
            answer = algorithm.act(known, tf.nest.pack_sequence_as(state, flat), exploration)
            actions, after, extras = answer
            return actions, tf.nest.flatten(after), tf.nest.flatten(extras)

        specs = [tf.TensorSpec(t.shape, t.dtype) for t in (*read, *tf.nest.flatten(state))]
        concrete = act.get_concrete_function(*specs)
        flat = tf.nest.flatten(state)

        def once() -> None:
            nonlocal flat
            actions, flat, _ = concrete(*read, *flat)
            actions.numpy()

        return once, batch

    def training(self, batch: int) -> tuple[Call, int]:
        """Updates from one batch of `batch` unrolls, again and again."""
        made, known = self._trained(batch)
        self.said = {"precision": self._computes_in(self._config)}
        update = Update(made.algorithm, group.Alone(), self._config, made.layout.values)
        return lambda: update(known, 0.0, 1e9, 0.0), batch * made.algorithm.unroll.length

    def learning(self, batch: int) -> tuple[Call, int]:
        """The same as a learner makes them: counted, and offered to actors."""
        (algorithm, layout, *_), known = self._trained(batch)
        config = dataclasses.replace(self._config, total_environment_frames=math.inf)
        source, limits = _Again(known), Limits(config, None)
        profile = Profile("", Path(), print)
        learner = Learner(
            config, algorithm, group.Alone(), source, self._server(1), layout, limits, 1, profile
        )
        learner.begin(lambda: math.nan)
        source.let.release()  # one is made ready while another is trained on

        def once() -> None:
            source.let.release()
            while not source.done.acquire(timeout=0.5):
                assert not learner.ended, learner.ended

        return once, batch * algorithm.unroll.length

    def _trained(self, batch: int) -> tuple[agent.Agreement, Batch]:
        """What is trained, and what on."""
        self._training = self._training or agent.make(self._config, 0)
        algorithm = self._training.algorithm
        spec = algorithm.unroll
        entries = self._entry([spec.length + spec.overlap, batch])
        start = tf.nest.map_structure(tf.convert_to_tensor, algorithm.initial_state(batch))
        one = tf.ones([batch])
        unrolls = tf.nest.map_structure(tf.constant, entries)
        keys = tf.range(batch, dtype=tf.int64)
        known = Batch(unrolls, start, keys, one, tf.zeros([batch], tf.int64), one > 0)
        return self._training, known

    def packing(self, batch: int) -> tuple[Call, int]:
        """Cuts what `batch` environments did into unrolls; counted in such."""
        algorithm = self._acting.algorithm
        state = tf.nest.flatten(algorithm.initial_state(batch))
        assembly = Assembly(algorithm.unroll, batch, algorithm.initial_state(batch))

        def once() -> None:
            assembly.begins_with(state)
            assembly.cut()

        return once, batch

    def playing(self, batch: int) -> tuple[Call, int]:
        """All that an actor's own thread does, cutting unrolls included."""
        return self._plays([batch])

    def turning(self, batch: int) -> tuple[Call, int]:
        """The same in groups that take turns, with the threads that step them."""
        return self._plays(auto.shares(batch, min(batch, self._config.env_groups)))

    def _plays(self, sizes: list[int]) -> tuple[Call, int]:
        algorithm = self._acting.algorithm
        groups = [(self._open(size, int.from_bytes(os.urandom(3))), size) for size in sizes]
        player = Player(algorithm, groups)
        return lambda: (player.play(), player.episodes()), sum(sizes) * algorithm.unroll.length

    def loading(self, batch: int) -> tuple[Call, int]:
        """Takes over parameters that were pulled; counted in such."""
        del batch
        layout = self._acting.layout
        vector = layout.pack(layout.values())
        self.said = {"trained": self._acting.weights}
        return lambda: layout.unpack(vector), 1

    def _computes_in(self, config: Config) -> str:
        return devices.precision(config.precision, self._acting.spec.observation)

    def _entry(self, shape: list[int]) -> Entry:
        """Entries [*shape, ...] with noise for pictures, and nothing that ends."""
        random = np.random.default_rng(0)

        def make(spec: tf.TensorSpec) -> np.ndarray:
            full = [*shape, *spec.shape]
            if spec.dtype == tf.uint8:
                return random.integers(256, size=full, dtype=np.uint8)
            return np.zeros(full, spec.dtype.as_numpy_dtype)

        return tf.nest.map_structure(make, self._acting.algorithm.unroll.step)


class _Again:
    """A source of one batch, as often as it is let."""

    def __init__(self, batch: Batch):
        self._batch = batch
        self.let, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def next(self, timeout: float) -> Batch | None:
        return self._batch if self.let.acquire(timeout=timeout) else None

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        self.done.release()


def main() -> None:
    """Answers until its input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    (config,), _ = flags.parse(sys.argv, __doc__ or "", Config)
    if _THREADS:
        lifecycle.give_way()
    else:
        setup.look(config)
    parts = Parts(config, _THREADS)
    ready: dict[tuple[str, int], tuple[Call, int]] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if part := asked.pop("prepare", ""):
            parts.said = {}
            if (part, asked["batch"]) not in ready:
                once, steps = ready[part, asked["batch"]] = getattr(parts, part)(**asked)
                once(), once()
            answer = parts.said
        elif "go" in asked:
            once, steps = ready[asked["part"], asked["batch"]]
            count, begin, cpu = 0, time.monotonic(), time.process_time()
            while time.monotonic() - begin < asked["go"] or count < 2:
                once()
                count += 1
                early = begin + count * asked.get("every", 0.0) - time.monotonic()
                if early > 0:  # a sleep of no time takes some, too
                    time.sleep(early)
            answer = {"cpu": time.process_time() - cpu, "steps": count * steps}
        else:
            answer = {"cpu": time.process_time()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
