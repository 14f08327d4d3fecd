"""The tasks of `worker.py` at the two ends of the wire, a learner's and an actor's.

Import this module after TensorFlow was loaded.
"""

import copy
import itertools
import math
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import real_run
from random_actions import random_actions

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms import agent
from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data.compression import COMPRESSORS
from impala_mm.data.step_codec import StepCodec
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments import from_flags
from impala_mm.environments.make import make_environments
from impala_mm.inference.batched_inference import BatchedInference
from impala_mm.learner.sources.batch_source import QueueSource
from impala_mm.runtime import devices
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.client import Client, Delivery
from impala_mm.transport.messages import Reply
from impala_mm.transport.server import Server

PreparedTask = tuple[Callable[[], object], float]  # (function that runs it once, steps of one run)
_TOKEN = "measured"


class WireTasks:
    """The tasks of sending and receiving; each public method prepares one."""

    def __init__(self, config: Config):
        self._config = config
        self._acting = agent.make_agent(agent.config_for_acting(config), 0)
        level = self._level = next(iter(self._acting.levels))
        self._make_environments = lambda envs, seed: make_environments(
            level, envs, seed, **from_flags.environment_options(config)
        )
        self.details: dict[str, Any] = {}  # what the last prepared task reports

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
        """Serve actors, and make batches of their unrolls."""
        return self._start_receiving(self._make_server(batch), batch)

    def serve_inference(self, batch: int) -> PreparedTask:
        """Serve actors, choose their actions, and make batches of the resulting unrolls."""
        made = agent.make_agent(agent.config_for_acting(self._config), 0)
        inference = BatchedInference(made.algorithm, made.layout, devices.training_device())
        return self._start_receiving(self._make_server(batch, inference), batch)

    def send_unrolls(self, batch: int, address: str, actor: int = 0) -> PreparedTask:
        """Compress `batch` unrolls and send them in one message, until the learner has them."""
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
        """Send a step of `batch` environments, and wait for the next actions."""
        client, environments = (
            self._connect(address, inference="learner"),
            self._make_environments(batch, 1),
        )
        spec = environments.spec
        answer_bytes = 4 * batch * sum(math.prod(part.shape) for part in spec.actions.leaves)
        codec = StepCodec(spec.observation, spec.masks)
        pack = COMPRESSORS[auto.compression(self._config, spec.observation)]
        steps = []
        for actions in random_actions(spec.actions, batch, 50):
            step = environments.step(actions) if steps else environments.reset()
            steps.append(copy.deepcopy(step))  # some environments reuse their arrays
        environments.close()
        header = client.header(actor=0, incarnation=1, stream=0)._replace(environments=batch)
        numbers, nothing = itertools.count(), np.zeros([0, 3], np.float32)

        def once() -> None:
            number = next(numbers)
            content = pack(codec.encode(steps[number % len(steps)]))
            delivery = Delivery(client, header._replace(number=number), [content], nothing)
            assert delivery.wait() == Reply.ACCEPTED
            assert len(delivery.answer) == answer_bytes

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

    def _make_server(self, batch: int, inference: BatchedInference | None = None) -> Server:
        self._address = real_run.free_address()
        place = "learner" if inference else "actor"
        return Server(
            self._address,
            HeldAddress(self._address),
            _TOKEN,
            self._acting.identity | {"run_id": "measured", "inference": place},
            2 * batch,
            lambda message: None,
            inference,
            unroll_bytes=UnrollCodec(self._acting.algorithm.unroll).size,
        )

    def _start_receiving(self, server: Server, batch: int) -> PreparedTask:
        """Publish a policy, and make batches of the unrolls that arrive."""
        layout = self._acting.layout
        values = layout.values()
        server.publish(0, lambda: layout.pack(values), values)
        source = QueueSource(server.queue, UnrollCodec(self._acting.algorithm.unroll), batch)

        def drain() -> None:
            try:
                while not server._closed:
                    source.next(0.2)
            except Exception:
                traceback.print_exc()
                os._exit(1)  # otherwise the sender would wait for ever

        threading.Thread(target=drain, daemon=True).start()
        self.details = {"address": self._address}
        return lambda: server, 1

    def _connect(self, address: str, actor: int = 0, inference: str = "actor") -> Client:
        client = Client(address, _TOKEN)
        me = {"actor": actor, "level": self._level, "incarnation": 1, "inference": inference}
        client.hello(self._acting.identity | {"run_id": "measured", "host": "here"} | me)
        return client
