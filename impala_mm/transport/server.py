"""The learner's end of the transport: a queue that actors fill, parameters that they fetch.

`transport` says what its four functions are for, and holds the end that calls them.
"""

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data.compression import decompress
from impala_mm.inference.batched_inference import BatchedInference
from impala_mm.runtime import ports
from impala_mm.transport import endpoints
from impala_mm.transport.chunks import ChunkStore
from impala_mm.transport.client import Client, Refused, Unreachable
from impala_mm.transport.delivery import (
    ACCEPTED,
    DISPLACED,
    FOREIGN,
    LOST,
    RUNNING,
    STALE,
    DeliveryLedger,
)
from impala_mm.transport.handshake import NO_TOKEN, refusal
from impala_mm.transport.messages import (
    MAX_CONTENT,
    PROTOCOL,
    ActorTimes,
    InferenceRequest,
    UnrollHeader,
    run_number,
)
from impala_mm.transport.parameter_store import ParameterStore
from impala_mm.transport.rebalancing import SETTLE_SECONDS, LearnerLoad, choose_learner


class ActorReport(NamedTuple):
    """What `enqueue` tells the learner besides the unrolls."""

    actor: int
    level: str  # that it plays
    episodes: np.ndarray  # float32 [K, 3]: (1 for a whole game else 0, return, steps)
    times: dict[str, float]  # seconds: what the actor did with its time


class Server:
    """The learner's end."""

    def __init__(
        self,
        address: str,
        bind_address: str,
        token: str,
        identity: dict[str, Any],
        queue_capacity: int,
        on_event: Callable[[str], None] = print,
        inference: BatchedInference | None = None,
        unroll_bytes: int | None = None,
    ):
        """Listens on `bind_address`; compares `identity` with that of each actor that says hello.

        With `inference` it acts for actors, too. `unroll_bytes`: of each unroll before it was
        compressed, if it was; what cannot be one is dropped. None: all goes into the queue as it
        comes.

        Raises OSError, naming the address and its holder, where another process has the port.
        """
        self.nonce = secrets.randbits(62)
        self.run = run_number(identity["run_id"])
        # (content of one unroll, its policy version): in TensorFlow, whose blocking enqueue is the
        # back-pressure: a call that waits here holds a thread of its own, and no other call up.
        self.queue = tf.queue.FIFOQueue(queue_capacity, [tf.string, tf.int64], [[], []])
        self.capacity = queue_capacity
        self._identity = {"learners": [address]} | identity
        self._identity |= {"protocol": PROTOCOL, "nonce": self.nonce}
        self._on_event, self.unroll_bytes = on_event, unroll_bytes
        self._ledger = DeliveryLedger()
        self._pieces = ChunkStore()
        self._snapshots = ParameterStore(MAX_CONTENT)
        self._levels: dict[int, str] = {}  # what each actor plays
        self._lock = threading.Lock()  # of the next three
        self._arrivals: list[ActorReport] = []
        self._beside = set[int]()  # actors on this host, those that have left too
        self.actors: dict[int, float] = {}  # those that are here, and when we last heard of each
        self._inference = inference
        if inference:
            inference.serve(self.nonce, self._heard, self._inferred)
        self._closed = False
        self.stale = 0  # messages dropped because they were had, or meant for another process
        self.dropped = 0  # unrolls that went nowhere, as their actors say
        self.refused = 0
        # Of several learners that may send each other actors: which this one is, and how all are.
        self.rank, self.needs = 0, list[LearnerLoad]()
        self._movable = set[int]()  # actors that know all learners by the addresses we do
        self._changed_at = time.monotonic()  # when an actor came or left last

        ports.check_free(bind_address)
        self._server = tf.distribute.experimental.rpc.Server.create("grpc", bind_address)
        for name, function in endpoints.make_endpoints(token, self, inference).items():
            self._server.register(name, function)
        self._server.start()
        # A port taken in the meantime raises nothing: only our own answer proves that we listen.
        try:
            answer = Client(address, token, timeout=10).hello({"probe": True})
        except (Refused, Unreachable) as error:
            raise OSError(f"{address} does not lead here: {error}") from None
        if answer["nonce"] != self.nonce:
            raise OSError(
                f"{address} is answered by another learner{ports.describe_holder(bind_address)}"
            )

    # -- the learner's side

    def fill(self) -> float:
        """Of the queue: 0 to 1."""
        return 0.0 if self._closed else int(self.queue.size()) / self.capacity

    def need(self, starved: float) -> LearnerLoad:
        """How this learner is, which waits so much of its time."""
        now, fill = time.monotonic(), self.fill()
        with self._lock:
            active = sum(now - heard < 2 * SETTLE_SECONDS for heard in self.actors.values())
            return LearnerLoad(starved, fill, active, now - self._changed_at > SETTLE_SECONDS)

    def elsewhere(self) -> int:
        """How many of the actors that are here run on other hosts."""
        with self._lock:
            return len(self.actors.keys() - self._beside)

    def publish(
        self, version: int, pack: Callable[[], bytes], values: Sequence[tf.Tensor] = ()
    ) -> None:
        """Makes what `pack` gives what actors get from now on; it is asked once, if anybody asks.

        Readers of an older version may finish it. Inference here acts by `values`.
        """
        self._snapshots.publish(version, pack)
        if self._inference:
            self._inference.publish(version, values)

    def inferred(self) -> dict[str, float]:
        """How many environments one inference here was for, in the mean since the last call."""
        batch = self._inference.mean_batch() if self._inference else 0.0
        return {"inference_batch": batch} if batch else {}

    def arrivals(self) -> list[ActorReport]:
        """What came with unrolls since the last call."""
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def silent(self, seconds: float) -> list[int]:
        """Actors from which nothing came for so long; they are forgotten, and said to have left."""
        deadline = time.monotonic() - seconds
        with self._lock:
            gone = [actor for actor, heard in self.actors.items() if heard < deadline]
            for actor in gone:
                del self.actors[actor]
        if self._inference:
            for actor in gone:
                self._inference.forget(actor)
        return gone

    def _heard(self, actor: int) -> None:
        """It waits for room in the queue, or its unroll is there now: it is here, or here again."""
        with self._lock:
            if actor not in self.actors:
                self._changed_at = time.monotonic()
            self.actors[actor] = time.monotonic()

    def close(self) -> None:
        """Lets go of actors that wait, and takes no new ones; what was being sent is dropped."""
        self._closed = True
        if self._inference:
            self._inference.close()
        self.queue.close(cancel_pending_enqueues=True)

    # -- what `calls` asks; none of it holds a lock while it waits, or waits long

    def _send_on(self, actor: int) -> int:
        """The learner that is to have this actor, if it may go and is needed there; else -1."""
        mine = self.need(0.0)
        with self._lock:
            if actor not in self._movable or actor not in self.actors:
                return -1
            to = choose_learner(self.rank, mine, self.needs)
            if to >= 0:
                del self.actors[actor]
                self._changed_at = time.monotonic()
            return to

    def hello(self, request: bytes) -> np.ndarray:
        """Who we are, or why this actor is refused; as JSON."""
        if self._closed:
            raise RuntimeError("the run has ended")  # for the caller, as if nobody were here
        asked = json.loads(request)
        answer = dict(self._identity)
        if not asked.get("probe"):
            if self._inference and self._snapshots.version < 0:
                raise RuntimeError("there is no policy yet")  # the caller comes again
            actor = int(asked["actor"])
            if refused := refusal(asked, self._identity):
                answer["refused"] = refused
                self.refused += 1
                self._on_event(f"actor {actor} on {asked['host']} refused: {refused}")
            else:
                self._levels[actor] = asked.get("level", "")
                with self._lock:
                    self._beside.discard(actor)
                    if asked.get("host") == socket.gethostname():
                        self._beside.add(actor)
                if known := set(asked.get("learners", ())) == set(self._identity["learners"]):
                    self._movable.add(actor)
                else:
                    self._movable.discard(actor)
                answer["moves"] = known
                self._ledger.join(actor, int(asked["incarnation"]))
                if self._inference:
                    self._inference.join(actor, int(asked["incarnation"]))
                self._heard(actor)
                self._on_event(f"actor {actor} on {asked['host']} joined")
        return np.array(json.dumps(answer).encode(), object)

    def no_token(self) -> np.ndarray:
        """What is said to whoever has none."""
        self.refused += 1
        self._on_event("a caller without the run's token was refused")
        return np.array(json.dumps({"refused": NO_TOKEN, "nonce": -1}).encode(), object)

    def begin(self, numbers: np.ndarray) -> np.int64:
        """Whether this message's unrolls go into the queue: a code of the ledger's."""
        header = UnrollHeader(*map(int, numbers))
        message = header.message
        if header.nonce != self.nonce or header.run != self.run:
            self.stale += 1
            return np.int64(FOREIGN)
        code = self._ledger.begin(*message)
        if code != DISPLACED:
            self._heard(header.actor)
        if code not in {ACCEPTED, RUNNING}:  # the call that runs may still need them
            self._pieces.take(message)
        elif code == ACCEPTED and header.pieces != self._pieces.count(message):  # asked without
            self._ledger.end(*message, done=False)
            code = LOST
        self.stale += code == STALE
        return np.int64(code)

    def end(
        self, numbers: np.ndarray, code: np.int64, finished: np.ndarray, fill: np.int32
    ) -> np.ndarray:
        """What a message is told: its code (ACCEPTED: its unrolls are in the queue), the queue's
        fill, the newest version, and the learner to go to from now on (-1: stay).
        """
        header, to = UnrollHeader(*map(int, numbers)), -1
        if code == ACCEPTED:
            self._ledger.end(*header.message)
            self.dropped += header.dropped
            self._arrived(header, finished)
            with self._lock:
                if header.actor in self.actors:  # else it was sent to another learner meanwhile
                    self.actors[header.actor] = time.monotonic()
        if len(self.needs) > 1 and code in {ACCEPTED, RUNNING}:
            to = self._send_on(header.actor)
        return np.array([code, fill, self._snapshots.version, to])

    def _inferred(self, asking: InferenceRequest, finished: np.ndarray) -> None:
        """A call was inferred, and its unrolls are in the queue."""
        self.dropped += asking.dropped
        if asking.playing or len(finished):
            self._arrived(asking, finished)

    def _arrived(self, said: UnrollHeader | InferenceRequest, finished: np.ndarray) -> None:
        """What an actor did with its time, and which episodes ended."""
        with self._lock:
            level = self._levels[said.actor]
            times = {name: getattr(said, name) / 1e6 for name in ActorTimes._fields}
            self._arrivals.append(ActorReport(said.actor, level, finished, times))

    def piece(self, numbers: np.ndarray, place: np.ndarray, content: bytes) -> np.int64:
        """Keeps a part of a message; `place`: of which of its unrolls, and which part of it."""
        header = UnrollHeader(*map(int, numbers))
        if header.nonce != self.nonce:
            return np.int64(FOREIGN)
        self._pieces.put(header.message, int(place[0]), int(place[1]), bytes(content))
        return np.int64(ACCEPTED)

    def as_they_were(self, numbers: np.ndarray, sent: np.ndarray) -> np.ndarray:
        """A message's unrolls before their actor compressed them or sent them in pieces; without
        what can be none.
        """
        header = UnrollHeader(*map(int, numbers))
        found = self._pieces.take(header.message) if header.pieces else list(sent)
        if self.unroll_bytes is None:
            return np.array(found, object)
        size = self.unroll_bytes
        whole = [content for each in found if (content := decompress(each, size)) is not None]
        if unreadable := len(found) - len(whole):
            self.dropped += unreadable
            self._on_event(
                f"actor {header.actor} sent {unreadable} unrolls that are "
                f"neither {self.unroll_bytes} bytes long nor compressed from as many: dropped"
            )
        return np.array(whole, object)

    def parameters(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(version, total bytes, nonce), a piece; version -1: there is none that is wanted."""
        version, offset, reader, at_least = map(int, wanted)
        total, content = 0, b""
        if self._snapshots.version < at_least:
            version = -1
        else:
            version, total, content = self._snapshots.read(version, offset, reader)
        return np.array([version, total, self.nonce]), np.array(content, object)
