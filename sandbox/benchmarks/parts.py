"""A process that measures its own CPU time of one part after another, as `components.py` asks.

    python sandbox/benchmarks/parts.py THREADS [flags of experiment.py]

THREADS of 0: those that a learner has which is alone on its host.
A line of JSON comes in, one goes out: `{"prepare": "training", "batch": 8}` makes a part ready and
warm, unless it is; `{"go": SECONDS, "part": ...}` measures it, so that several of
these processes can measure side by side, and again later. `{}` asks for the CPU time so far.
`serve`, `send` and `pull` are the two ends of the wire, in a process each, and so are `attend` and
`asking`.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import runs

from impala_mm import processes

_THREADS = int(sys.argv.pop(1)) if __name__ == "__main__" else 1
processes.load_tensorflow(_THREADS, _THREADS)

import numpy as np
import tensorflow as tf

from impala_mm import agreement, choice, devices, environments, flags, group, transport
from impala_mm.actor import Player
from impala_mm.assembly import Assembly
from impala_mm.compression import PACKS
from impala_mm.config import Config
from impala_mm.environments import Step, atari
from impala_mm.inference import Inference
from impala_mm.remote import Asking, StepCodec
from impala_mm.server import Server
from impala_mm.source import QueueSource
from impala_mm.trajectory import Batch, Codec, Entry
from impala_mm.update import Update

Call = Callable[[], object]
_TOKEN = "measured"


class Parts:
    """Each method makes a part ready: (what runs it once, how many steps that makes)."""

    def __init__(self, config: Config, threads: int):
        self._config, self._threads = config, threads
        self._acting = agreement.make(agreement.acting(config), 0)
        self._training: agreement.Agreement | None = None
        level = next(iter(self._acting.levels))
        self._open = lambda envs, seed: environments.make(
            level, envs, seed, **agreement.options(config)
        )
        self.said: dict[str, Any] = {}  # what the last part that was made ready told besides

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
        self.said = {"precision": self._computes_in(agreement.acting(self._config))}
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
        self._training = self._training or agreement.make(self._config, 0)
        algorithm = self._training.algorithm
        self.said = {"precision": self._computes_in(self._config)}
        spec = algorithm.unroll
        entries = self._entry([spec.length + spec.overlap, batch])
        start = tf.nest.map_structure(tf.convert_to_tensor, algorithm.initial_state(batch))
        one = tf.ones([batch])
        unrolls = tf.nest.map_structure(tf.constant, entries)
        keys = tf.range(batch, dtype=tf.int64)
        known = Batch(unrolls, start, keys, one, tf.zeros([batch], tf.int64), one > 0)
        update = Update(algorithm, group.Alone(), self._config, self._training.layout.values)
        return lambda: update(known, 0.0, 1e9, 0.0), batch * spec.length

    def packing(self, batch: int) -> tuple[Call, int]:
        """Cuts what `batch` environments did into unrolls; counted in such."""
        algorithm = self._acting.algorithm
        state = tf.nest.flatten(algorithm.initial_state(batch))
        assembly = Assembly(algorithm.unroll, batch, algorithm.initial_state(batch))

        def once() -> None:
            assembly.begins_with(state)
            assembly.cut()

        return once, batch

    def publishing(self, batch: int) -> tuple[Call, int]:
        """Packs the parameters and makes them what actors get; counted in publications."""
        del batch
        server = self._server(1)
        layout, turn = self._acting.layout, iter(range(10**9))
        self.said = {"parameter_bytes": len(layout.pack(layout.values()))}

        def once() -> None:
            packed = layout.pack(layout.values())  # as for a version that somebody pulls
            server.publish(next(turn), lambda: packed)

        return once, 1

    def playing(self, batch: int) -> tuple[Call, int]:
        """All that an actor's own thread does, cutting unrolls included."""
        algorithm = self._acting.algorithm
        player = Player(algorithm, [(self._open(batch, int.from_bytes(os.urandom(3))), batch)])
        return lambda: (player.play(), player.episodes()), batch * algorithm.unroll.length

    def loading(self, batch: int) -> tuple[Call, int]:
        """Takes over parameters that were pulled; counted in such."""
        del batch
        layout = self._acting.layout
        vector = layout.pack(layout.values())
        self.said = {"trained": self._acting.weights}
        return lambda: layout.unpack(vector), 1

    def serve(self, batch: int) -> tuple[Call, int]:
        """Listens, and makes batches of what comes."""
        return self._serving(self._server(batch), batch)

    def attend(self, batch: int) -> tuple[Call, int]:
        """Listens, chooses actions for who asks, and makes batches of what they did."""
        made = agreement.make(agreement.acting(self._config), 0)
        inference = Inference(made.algorithm, made.layout, devices.training())
        return self._serving(self._server(batch, inference), batch)

    def send(self, batch: int, address: str, actor: int = 0) -> tuple[Call, int]:
        """Compresses `batch` unrolls and sends them in a message, until the other end has them."""
        client = self._client(address, actor)
        contents, turn = self._unrolls(batch), iter(range(10**9))
        step = self._acting.algorithm.unroll.step
        pack = PACKS[choice.compression(self._config, step.observation)]
        self.said = {"unroll_bytes": sum(map(len, map(pack, contents))) / batch}
        nothing = dict.fromkeys(transport.Header._fields, 0)
        names = {"nonce": client.nonce, "run": client.run, "actor": actor, "incarnation": 1}

        def once() -> None:
            header = transport.Header(**nothing | names | {"sequence": next(turn)})
            packed = [pack(content) for content in contents]
            code = client.enqueue(header, packed, np.zeros([0, 3], np.float32))
            assert code == transport.ACCEPTED, code

        return once, batch

    def asking(self, batch: int, address: str) -> tuple[Call, int]:
        """Sends a step of `batch` environments, and waits for the actions that follow."""
        client, playing = self._client(address, inference="learner"), self._open(batch, 1)
        codec, random = StepCodec(playing.spec.observation), np.random.default_rng(0)
        pack = PACKS[choice.compression(self._config, playing.spec.observation)]
        steps = []
        for _ in range(50):
            actions = random.integers(playing.spec.num_actions, size=batch).astype(np.int32)
            step = playing.step(actions) if steps else playing.reset()
            steps.append(Step(*map(np.copy, step)))  # of some its arrays are written over
        playing.close()
        blank = Asking(client.nonce, 0, 1, 0, -1, 0, 0, 0, 0, 0, batch)
        numbers, nothing = itertools.count(), np.zeros([0, 3], np.float32)

        def once() -> None:
            number = next(numbers)
            content = pack(codec.encode(steps[number % len(steps)]))
            asked = transport.Asked(client, blank._replace(number=number), content, nothing)
            assert len(asked.actions()) == batch

        return once, batch

    def pull(self, batch: int, address: str) -> tuple[Call, int]:
        """Fetches the parameters and loads them."""
        del batch
        client, layout = self._client(address), self._acting.layout

        def once() -> None:
            found = client.get_parameters()
            assert found
            layout.unpack(found[1])

        return once, 1

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

    def _unrolls(self, batch: int) -> list[bytes]:
        """Played, so that what shrinks on the wire is what does so in a run."""
        playing = self._open(batch, 1)
        try:
            return Player(self._acting.algorithm, [(playing, batch)]).play()[:batch]
        finally:
            playing.close()

    def _server(self, batch: int, inference: Inference | None = None) -> Server:
        self._address = runs.free_address()
        place = "learner" if inference else "actor"
        return Server(
            self._address,
            self._address,
            _TOKEN,
            self._acting.identity | {"run_id": "measured", "inference": place},
            2 * batch,
            lambda message: None,
            inference,
            unroll_bytes=Codec(self._acting.algorithm.unroll).size,
        )

    def _serving(self, server: Server, batch: int) -> tuple[Call, int]:
        """Its policy, and batches of what comes."""
        layout = self._acting.layout
        values = layout.values()
        server.publish(0, lambda: layout.pack(values), values)
        source = QueueSource(server, Codec(self._acting.algorithm.unroll), batch)

        def drain() -> None:
            while not server._closed:
                source.next(0.2)

        threading.Thread(target=drain, daemon=True).start()
        self.said = {"address": self._address}
        return lambda: server, 1

    def _client(self, address: str, actor: int = 0, inference: str = "actor") -> transport.Client:
        client = transport.Client(address, _TOKEN)
        me = {"actor": actor, "level": "", "incarnation": 1, "host": "here", "inference": inference}
        client.hello(self._acting.identity | {"run_id": "measured"} | me)
        return client


def main() -> None:
    """Answers until its input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    (config,), _ = flags.parse(sys.argv, __doc__ or "", Config)
    if not _THREADS:
        spec = next(iter(agreement.levels_of(config).values()))
        gpu = bool(devices.gpus(config.device))
        processes.compute_with(*choice.threads(config, spec.observation, 0, gpu))
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
            answer = {"cpu": time.process_time() - cpu, "steps": count * steps}
        else:
            answer = {"cpu": time.process_time()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
