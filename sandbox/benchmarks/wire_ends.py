"""The tasks of `worker.py` at the two ends of the wire: what a learner does there, and an actor.

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
from impala_mm.data.compression import COMPRESSORS
from impala_mm.data.step_codec import StepCodec
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments import from_flags
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import Step
from impala_mm.inference.batched_inference import BatchedInference
from impala_mm.learner.batch_source import QueueSource
from impala_mm.runtime import devices
from impala_mm.transport.client import Client, Delivery
from impala_mm.transport.messages import Reply
from impala_mm.transport.server import Server

PreparedTask = tuple[Callable[[], object], int]  # (what runs it once, the steps of that)
_TOKEN = "measured"


class WireTasks:
    """The tasks of sending and receiving; each public method makes one ready."""

    def __init__(self, config: Config):
        self._config = config
        self._acting = agent.make_agent(agent.config_for_acting(config), 0)
        level = next(iter(self._acting.levels))
        self._make_environments = lambda envs, seed: make_environments(
            level, envs, seed, **from_flags.environment_options(config)
        )
        self.details: dict[str, Any] = {}  # what the last task that was made ready reports besides

    def publish_parameters(self, batch: int) -> PreparedTask:
        """Packs the parameters and makes them what actors get; counted in publications."""
        del batch
        server = self._make_server(1)
        layout, numbers = self._acting.layout, iter(range(10**9))
        self.details = {"parameter_bytes": len(layout.pack(layout.values()))}

        def once() -> None:
            packed = layout.pack(layout.values())  # as for a version that somebody pulls
            server.publish(next(numbers), lambda: packed)

        return once, 1

    def receive_unrolls(self, batch: int) -> PreparedTask:
        """Listens, and makes batches of what comes."""
        return self._start_receiving(self._make_server(batch), batch)

    def serve_inference(self, batch: int) -> PreparedTask:
        """Listens, chooses actions for who asks, and makes batches of what they did."""
        made = agent.make_agent(agent.config_for_acting(self._config), 0)
        inference = BatchedInference(made.algorithm, made.layout, devices.training_device())
        return self._start_receiving(self._make_server(batch, inference), batch)

    def send_unrolls(self, batch: int, address: str, actor: int = 0) -> PreparedTask:
        """Compresses `batch` unrolls and sends them in a message, until the other end has them."""
        client = self._connect(address, actor)
        contents, numbers = self._play_unrolls(batch), iter(range(10**9))
        step = self._acting.algorithm.unroll.step
        pack = COMPRESSORS[auto.compression(self._config, step.observation)]
        self.details = {"unroll_bytes": sum(map(len, map(pack, contents))) / batch}
        header = client.header(actor, incarnation=1)

        def once() -> None:
            packed = [pack(content) for content in contents]
            reply = client.enqueue(
                header._replace(number=next(numbers)), packed, np.zeros([0, 3], np.float32)
            )
            assert reply == Reply.ACCEPTED, reply

        return once, batch

    def request_actions(self, batch: int, address: str) -> PreparedTask:
        """Sends a step of `batch` environments, and waits for the actions that follow."""
        client, environments = (
            self._connect(address, inference="learner"),
            self._make_environments(batch, 1),
        )
        codec, random = StepCodec(environments.spec.observation), np.random.default_rng(0)
        pack = COMPRESSORS[auto.compression(self._config, environments.spec.observation)]
        steps = []
        for _ in range(50):
            actions = random.integers(environments.spec.num_actions, size=batch).astype(np.int32)
            step = environments.step(actions) if steps else environments.reset()
            steps.append(Step(*map(np.copy, step)))  # of some its arrays are written over
        environments.close()
        header = client.header(actor=0, incarnation=1, stream=0)._replace(environments=batch)
        numbers, nothing = itertools.count(), np.zeros([0, 3], np.float32)

        def once() -> None:
            number = next(numbers)
            content = pack(codec.encode(steps[number % len(steps)]))
            delivery = Delivery(client, header._replace(number=number), [content], nothing)
            assert delivery.wait() == Reply.ACCEPTED
            assert len(delivery.answer) == 4 * batch

        return once, batch

    def pull_parameters(self, batch: int, address: str) -> PreparedTask:
        """Fetches the parameters."""
        del batch
        client = self._connect(address)

        def once() -> None:
            assert client.get_parameters()

        return once, 1

    def _play_unrolls(self, batch: int) -> list[bytes]:
        """Plays unrolls, so that they compress as those of a run do."""
        environments = self._make_environments(batch, 1)
        try:
            return Player(self._acting.algorithm, [(environments, batch)]).play()[:batch]
        finally:
            environments.close()

    def _make_server(self, batch: int, inference: BatchedInference | None = None) -> Server:
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
            unroll_bytes=UnrollCodec(self._acting.algorithm.unroll).size,
        )

    def _start_receiving(self, server: Server, batch: int) -> PreparedTask:
        """Publishes a policy, and makes batches of what comes."""
        layout = self._acting.layout
        values = layout.values()
        server.publish(0, lambda: layout.pack(values), values)
        source = QueueSource(server, UnrollCodec(self._acting.algorithm.unroll), batch)

        def drain() -> None:
            try:
                while not server._closed:
                    source.next(0.2)
            except Exception:
                traceback.print_exc()
                os._exit(1)  # who sends would wait for ever

        threading.Thread(target=drain, daemon=True).start()
        self.details = {"address": self._address}
        return lambda: server, 1

    def _connect(self, address: str, actor: int = 0, inference: str = "actor") -> Client:
        client = Client(address, _TOKEN)
        me = {"actor": actor, "level": "", "incarnation": 1, "host": "here", "inference": inference}
        client.hello(self._acting.identity | {"run_id": "measured"} | me)
        return client
