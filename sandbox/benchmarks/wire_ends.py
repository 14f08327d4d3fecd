"""The two ends of the wire, parts of `worker.py`: what a learner does there, and an actor.

To be imported once TensorFlow is.
"""

import itertools
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import real_run

from impala_mm.actor.actor import Player
from impala_mm.algorithms import agent
from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data.compression import PACKS
from impala_mm.data.step_codec import StepCodec
from impala_mm.data.trajectory import Codec
from impala_mm.environments import from_flags
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import Step
from impala_mm.inference.batched_inference import Inference
from impala_mm.learner.batch_source import QueueSource
from impala_mm.runtime import devices
from impala_mm.transport import client as client_
from impala_mm.transport import messages
from impala_mm.transport.messages import Asking
from impala_mm.transport.server import Server

Call = Callable[[], object]
_TOKEN = "measured"


class Ends:
    """Each method makes a part ready: (what runs it once, how many steps that makes)."""

    def __init__(self, config: Config):
        self._config = config
        self._acting = agent.make(agent.acting(config), 0)
        level = next(iter(self._acting.levels))
        self._open = lambda envs, seed: make_environments(
            level, envs, seed, **from_flags.options(config)
        )
        self.said: dict[str, Any] = {}  # what the last part that was made ready told besides

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

    def serve(self, batch: int) -> tuple[Call, int]:
        """Listens, and makes batches of what comes."""
        return self._serving(self._server(batch), batch)

    def attend(self, batch: int) -> tuple[Call, int]:
        """Listens, chooses actions for who asks, and makes batches of what they did."""
        made = agent.make(agent.acting(self._config), 0)
        inference = Inference(made.algorithm, made.layout, devices.training())
        return self._serving(self._server(batch, inference), batch)

    def send(self, batch: int, address: str, actor: int = 0) -> tuple[Call, int]:
        """Compresses `batch` unrolls and sends them in a message, until the other end has them."""
        client = self._client(address, actor)
        contents, turn = self._unrolls(batch), iter(range(10**9))
        step = self._acting.algorithm.unroll.step
        pack = PACKS[auto.compression(self._config, step.observation)]
        self.said = {"unroll_bytes": sum(map(len, map(pack, contents))) / batch}
        nothing = dict.fromkeys(messages.Header._fields, 0)
        names = {"nonce": client.nonce, "run": client.run, "actor": actor, "incarnation": 1}

        def once() -> None:
            header = messages.Header(**nothing | names | {"sequence": next(turn)})
            packed = [pack(content) for content in contents]
            code = client.enqueue(header, packed, np.zeros([0, 3], np.float32))
            assert code == client_.ACCEPTED, code

        return once, batch

    def asking(self, batch: int, address: str) -> tuple[Call, int]:
        """Sends a step of `batch` environments, and waits for the actions that follow."""
        client, playing = self._client(address, inference="learner"), self._open(batch, 1)
        codec, random = StepCodec(playing.spec.observation), np.random.default_rng(0)
        pack = PACKS[auto.compression(self._config, playing.spec.observation)]
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
            asked = client_.Asked(client, blank._replace(number=number), content, nothing)
            assert len(asked.actions()) == batch

        return once, batch

    def pull(self, batch: int, address: str) -> tuple[Call, int]:
        """Fetches the parameters."""
        del batch
        client = self._client(address)

        def once() -> None:
            assert client.get_parameters()

        return once, 1

    def _unrolls(self, batch: int) -> list[bytes]:
        """Played, so that what shrinks on the wire is what does so in a run."""
        playing = self._open(batch, 1)
        try:
            return Player(self._acting.algorithm, [(playing, batch)]).play()[:batch]
        finally:
            playing.close()

    def _server(self, batch: int, inference: Inference | None = None) -> Server:
        self._address = real_run.free_address()
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
            try:
                while not server._closed:
                    source.next(0.2)
            except Exception:
                traceback.print_exc()
                os._exit(1)  # who sends would wait for ever

        threading.Thread(target=drain, daemon=True).start()
        self.said = {"address": self._address}
        return lambda: server, 1

    def _client(self, address: str, actor: int = 0, inference: str = "actor") -> client_.Client:
        client = client_.Client(address, _TOKEN)
        me = {"actor": actor, "level": "", "incarnation": 1, "host": "here", "inference": inference}
        client.hello(self._acting.identity | {"run_id": "measured"} | me)
        return client
