"""A learner that infers, and actors that only step, in the test's own process over real calls."""

import contextlib
import gc
import threading
import time

import tensorflow as tf
from deadlines import Deadline
from processes import free_port

from impala_mm.actor.stepping_actor import SteppingActor
from impala_mm.algorithms import agent
from impala_mm.algorithms.interface import Algorithm, entry_spec
from impala_mm.config.settings import Config
from impala_mm.data.compression import leave_uncompressed
from impala_mm.data.trajectory import UnrollCodec, UnrollSpec
from impala_mm.data.variables import ParameterLayout, Variables
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.inference.batched_inference import BatchedInference
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport import messages
from impala_mm.transport.rounds import Rounds
from impala_mm.transport.server import Server

TOKEN = "token"
_KEPT = []  # servers are never freed: TensorFlow's threads may use them after the last call


class Random(Algorithm):
    """An algorithm that acts at random and has no state."""

    variables = Variables([], [], [])

    def __init__(self, level_name, length):
        spec = level_spec(level_name)
        self.unroll = UnrollSpec(length, 1, entry_spec(spec, ()), ())
        self._actions = spec.num_actions

    def initial_state(self, batch):
        return ()

    def act(self, entry, core_state, exploration):
        """Return random actions."""
        shape = tf.shape(entry.reward)
        return tf.random.uniform(shape, 0, self._actions, tf.int32), (), ()


class Remote:
    """A server whose learner infers with `algorithm`, and the unrolls that it receives."""

    def __init__(
        self,
        algorithm,
        variables=(),
        capacity=100,
        identity=None,
        published=True,
        columns=0,
        find_mistake=lambda unroll: "",
    ):
        self.algorithm = algorithm
        layout = ParameterLayout(variables, variables, "float32")
        self.inference = BatchedInference(algorithm, layout)
        self.address = f"127.0.0.1:{free_port()}"
        self.identity = identity or {"level_name": "L", "inference": "learner"}
        self.events, self.said, self.stop = [], [], threading.Event()
        known = self.identity | {"run_id": "r", "length": algorithm.unroll.length}
        self.server = Server(
            *(self.address, HeldAddress(self.address), TOKEN, known, capacity),
            *(self.events.append, self.inference),
            rounds=Rounds(columns, self.events.append) if columns else None,
            find_mistake=find_mistake,
        )
        if published:
            self.server.publish(0, lambda: b"", layout.values())
        self._codec, self._actors = UnrollCodec(algorithm.unroll), []

    def me(self, actor):
        """Return the identity of an actor that the server accepts."""
        return self.identity | {"protocol": messages.PROTOCOL, "actor": actor, "level": "L"}

    def act(self, level, sizes, actor=0, seed=0, pack=leave_uncompressed):
        """Start an actor with groups of these sizes."""
        groups = [
            (make_environments(level, size, seed=seed + sum(sizes[:i])), size)
            for i, size in enumerate(sizes)
        ]
        me = self.me(actor) | {"groups": sizes}
        arguments = self.address, me, TOKEN, groups, self.said.append, self.stop
        self._actors.append(SteppingActor(*arguments, Heartbeat(), pack))
        self._actors[-1].start()
        return self._actors[-1]

    def taken(self, count):
        """Return (entries [T+overlap, count, ...], start, versions) of `count` queued unrolls."""
        deadline = Deadline(60)
        while int(self.server.queue.size()) < count:
            assert not deadline.is_over(), self.events
            time.sleep(0.01)
        contents, versions = self.server.queue.dequeue_many(count)
        return *self._codec.decode(contents), versions.numpy()

    def end(self):
        """Stop the server and all actors."""
        self.stop.set()
        self.server.close()
        for actor in self._actors:
            actor.join(60)
            assert not actor.is_alive()
            assert actor.failure is None


@contextlib.contextmanager
def remote(algorithm, **options):
    """Yield a `Remote`, and stop it at the end."""
    gc.collect()  # frees calls that an earlier traceback kept, before a graph is traced
    made = Remote(algorithm, **options)
    _KEPT.append(made)
    try:
        yield made
    finally:
        made.end()


def network(level_name, agent_name, **settings):
    """Return (IMPALA for this level and network, its variables)."""
    config = Config(level_name=level_name, agent_name=agent_name, **settings)
    tf.random.set_seed(1)
    agreed = agent.make_agent(config, 0)
    return agreed.algorithm, agreed.algorithm.variables.acting
