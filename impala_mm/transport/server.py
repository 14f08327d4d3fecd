"""The learner's end of the connection: a queue that actors fill, parameters that they fetch.

`endpoints` has the functions that actors call; what they ask of the learner is here.
"""

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.runtime import ports
from impala_mm.runtime.log import Say
from impala_mm.transport.client import Client, Refused, Unreachable
from impala_mm.transport.endpoints import InferenceCalls, UnrollReceiver, make_endpoints
from impala_mm.transport.handshake import NO_TOKEN, refusal
from impala_mm.transport.messages import (
    MAX_CONTENT,
    NO_NONCE,
    NO_POLICY,
    PROTOCOL,
    STAY,
    ActorTimes,
    InferenceRequest,
    ParametersReply,
    ParametersRequest,
    Reply,
    UnrollHeader,
    run_number,
)
from impala_mm.transport.parameter_store import ParameterStore
from impala_mm.transport.rebalancing import SETTLE_SECONDS, LearnerLoad, choose_learner


class ActorReport(NamedTuple):
    """What an actor says besides its unrolls."""

    actor: int
    level: str  # that it plays
    episodes: np.ndarray  # float32 [K, 3]: (1 for a whole game else 0, return, steps)
    times: dict[str, float]  # seconds: what the actor did with its time


class InferenceService(InferenceCalls, Protocol):
    """Inference at the learner, as the server needs it; `inference` implements it."""

    def attach(
        self,
        nonce: int,
        heard_from: Callable[[int], None],
        answered: Callable[[InferenceRequest, np.ndarray], None],
    ) -> None:
        """Serve the learner's process of this nonce; both functions are told of each call."""

    def publish(self, version: int, values: Sequence[tf.Tensor]) -> None:
        """Act by these values from the next batch on."""

    def join(self, actor: int, incarnation: int) -> None:
        """Make this incarnation the actor."""

    def forget(self, actor: int) -> None:
        """Drop what an actor had begun."""

    def mean_batch(self) -> float:
        """Return how many environments one inference was for, in the mean since the last call."""

    def close(self) -> None:
        """Answer nobody from now on."""


class Server:
    """Listens for actors; implements `endpoints.LearnerCalls`."""

    def __init__(
        self,
        address: str,
        bind_address: str,
        token: str,
        identity: dict[str, Any],
        queue_capacity: int,
        say: Say = print,
        inference: InferenceService | None = None,
        unroll_bytes: int | None = None,
    ):
        """Listens on `bind_address`; compares `identity` with that of each actor that says hello.

        With `inference` it acts for actors, too. `unroll_bytes`: as of `UnrollReceiver`.

        Raises OSError, naming the address and its holder, where another process has the port.
        """
        self.nonce = secrets.randbits(62)
        self.run = run_number(identity["run_id"])
        self.capacity = queue_capacity
        self._identity = {"learners": [address]} | identity
        self._identity |= {"protocol": PROTOCOL, "nonce": self.nonce}
        self._say = say
        self._receiver = UnrollReceiver(
            self, self.nonce, self.run, queue_capacity, unroll_bytes, say
        )
        self._parameters = ParameterStore(MAX_CONTENT)
        self._levels: dict[int, str] = {}  # what each actor plays
        self._lock = threading.Lock()  # of the next three
        self._reports: list[ActorReport] = []
        self._on_this_host = set[int]()  # actors, those that have left too
        self.actors: dict[int, float] = {}  # those that are here, and when we last heard of each
        self._inference = inference
        if inference:
            inference.attach(self.nonce, self.heard_from, self._inference_answered)
        self._closed = False
        self.refused = 0
        self._dropped = 0  # unrolls of actors whose learner infers that went nowhere
        # Of several learners that may send each other actors: this one, and the load of all.
        self.rank, self.loads = 0, list[LearnerLoad]()
        self._movable = set[int]()  # actors that know all learners by the addresses we do
        self._changed_at = time.monotonic()  # when an actor came or left last

        ports.check_free(bind_address)
        self._server = tf.distribute.experimental.rpc.Server.create("grpc", bind_address)
        for name, function in make_endpoints(token, self, self._receiver, inference).items():
            self._server.register(name, function)
        self._server.start()
        # A port taken in the meantime raises nothing: only our own answer proves that we listen.
        try:
            answer = Client(address, token, timeout=10).hello({"probe": True})
        except (Refused, Unreachable) as error:
            raise OSError(f"{address} does not lead here: {error}") from None
        if answer["nonce"] != self.nonce:
            holder = ports.describe_holder(bind_address)
            raise OSError(f"{address} is answered by another learner{holder}")

    # -- the learner's side

    @property
    def queue(self) -> tf.queue.QueueBase:
        """(an unroll's bytes, its policy version) for the learner's batches."""
        return self._receiver.queue

    @property
    def stale(self) -> int:
        """How many messages were dropped: had before, or meant for another process."""
        return self._receiver.stale

    @property
    def dropped(self) -> int:
        """How many unrolls went nowhere."""
        return self._receiver.dropped + self._dropped

    def fill(self) -> float:
        """Return how full the queue is, 0 to 1."""
        return 0.0 if self._closed else int(self.queue.size()) / self.capacity

    def load(self, wait_share: float) -> LearnerLoad:
        """Return the load of this learner, which waits this share of its time."""
        now, fill = time.monotonic(), self.fill()
        with self._lock:
            active = sum(now - heard < 2 * SETTLE_SECONDS for heard in self.actors.values())
            return LearnerLoad(wait_share, fill, active, now - self._changed_at > SETTLE_SECONDS)

    def actors_on_other_hosts(self) -> int:
        """Return how many of the actors that are here run on other hosts."""
        with self._lock:
            return len(self.actors.keys() - self._on_this_host)

    def publish(
        self, version: int, pack: Callable[[], bytes], values: Sequence[tf.Tensor] = ()
    ) -> None:
        """Offer what `pack` returns to actors from now on; it is called once, if anybody asks.

        Readers of an older version may finish it. Inference here acts by `values`.
        """
        self._parameters.publish(version, pack)
        if self._inference:
            self._inference.publish(version, values)

    def inference_metrics(self) -> dict[str, float]:
        """Return how many environments one inference here was for, since the last call."""
        batch = self._inference.mean_batch() if self._inference else 0.0
        return {"inference_batch": batch} if batch else {}

    def take_reports(self) -> list[ActorReport]:
        """Return what came with unrolls since the last call."""
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def forget_silent(self, seconds: float) -> list[int]:
        """Forget the actors from which nothing came for so long; return them."""
        deadline = time.monotonic() - seconds
        with self._lock:
            gone = [actor for actor, heard in self.actors.items() if heard < deadline]
            for actor in gone:
                del self.actors[actor]
        if self._inference:
            for actor in gone:
                self._inference.forget(actor)
        return gone

    def close(self) -> None:
        """Let go of actors that wait, and take no new ones; what was being sent is dropped."""
        self._closed = True
        if self._inference:
            self._inference.close()
        self.queue.close(cancel_pending_enqueues=True)

    # -- what the endpoints call; none of it holds a lock while it waits, or waits long

    def hello(self, request: bytes) -> np.ndarray:
        """Return who the learner is, or why it refuses the actor; as JSON."""
        if self._closed:
            raise RuntimeError("the run has ended")  # for the caller, as if nobody were here
        asked = json.loads(request)
        answer = dict(self._identity)
        if not asked.get("probe"):
            if self._inference and self._parameters.version is None:
                raise RuntimeError("there is no policy yet")  # the caller comes again
            if refused := refusal(asked, self._identity):
                answer["refused"] = refused
                self.refused += 1
                self._say(f"actor {int(asked['actor'])} on {asked['host']} refused: {refused}")
            else:
                answer["moves"] = self._join(asked)
        return np.array(json.dumps(answer).encode(), object)

    def _join(self, asked: dict[str, Any]) -> bool:
        """Take an actor up; return whether it may be sent to other learners."""
        actor, incarnation = int(asked["actor"]), int(asked["incarnation"])
        self._levels[actor] = asked.get("level", "")
        with self._lock:
            self._on_this_host.discard(actor)
            if asked.get("host") == socket.gethostname():
                self._on_this_host.add(actor)
        if movable := set(asked.get("learners", ())) == set(self._identity["learners"]):
            self._movable.add(actor)
        else:
            self._movable.discard(actor)
        self._receiver.join(actor, incarnation)
        if self._inference:
            self._inference.join(actor, incarnation)
        self.heard_from(actor)
        self._say(f"actor {actor} on {asked['host']} joined")
        return movable

    def refuse_stranger(self) -> np.ndarray:
        """Return what a caller without the token is told; as JSON."""
        self.refused += 1
        self._say("a caller without the run's token was refused")
        return np.array(json.dumps({"refused": NO_TOKEN, "nonce": NO_NONCE}).encode(), object)

    def heard_from(self, actor: int) -> None:
        """Record that the actor is here, or here again."""
        with self._lock:
            if actor not in self.actors:
                self._changed_at = time.monotonic()
            self.actors[actor] = time.monotonic()

    def unrolls_arrived(self, header: UnrollHeader, episodes: np.ndarray) -> None:
        """Record what came with unrolls that are in the queue."""
        self._record(header, episodes)
        with self._lock:
            if header.actor in self.actors:  # else it was sent to another learner meanwhile
                self.actors[header.actor] = time.monotonic()

    def where_next(self, header: UnrollHeader, reply: Reply) -> tuple[int, int]:
        """Return the newest policy version, and the learner that the actor is to feed next."""
        version, learner = self._parameters.version, None
        if len(self.loads) > 1 and reply in {Reply.ACCEPTED, Reply.RUNNING}:
            learner = self._send_elsewhere(header.actor)
        return NO_POLICY if version is None else version, STAY if learner is None else learner

    def _send_elsewhere(self, actor: int) -> int | None:
        """Return the learner that is to have this actor, if it may go and is needed there."""
        own = self.load(0.0)
        with self._lock:
            if actor not in self._movable or actor not in self.actors:
                return None
            learner = choose_learner(self.rank, own, self.loads)
            if learner is not None:
                del self.actors[actor]
                self._changed_at = time.monotonic()
            return learner

    def _inference_answered(self, request: InferenceRequest, episodes: np.ndarray) -> None:
        """Record what came with a request for actions."""
        self._dropped += request.dropped
        if request.playing or len(episodes):
            self._record(request, episodes)

    def _record(self, message: UnrollHeader | InferenceRequest, episodes: np.ndarray) -> None:
        """Keep what an actor did with its time, and which episodes ended, for `take_reports`."""
        with self._lock:
            level = self._levels[message.actor]
            times = {name: getattr(message, name) / 1e6 for name in ActorTimes._fields}
            self._reports.append(ActorReport(message.actor, level, episodes, times))

    def read_parameters(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a ParametersReply to a ParametersRequest, and the part of the parameters."""
        request = ParametersRequest(*map(int, numbers))
        version = None if request.version == NO_POLICY else request.version
        part, newest = None, self._parameters.version
        if newest is not None and newest >= request.min_version:
            part = self._parameters.read(version, request.offset, request.reader)
        if part is None:
            return np.array(ParametersReply(NO_POLICY, 0, self.nonce)), np.array(b"", object)
        reply = ParametersReply(part.version, part.total, self.nonce)
        return np.array(reply), np.array(part.content, object)
