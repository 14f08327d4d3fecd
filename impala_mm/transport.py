"""How actors and their learner talk: unrolls up, parameters down.

No other file knows the mechanism: TensorFlow's RPC (`tf.distribute.experimental.rpc`). The
learner's Server offers four functions, each checks the run's token first; an actor's Client calls
them.

    hello           who are you, what do you run; answers or refuses with a sentence
    enqueue         a group of unrolls into the learner's queue; blocks while the queue is full
    piece           a part of unrolls too large for one message, before their enqueue
    get_parameters  a piece of the newest parameters, as one flat vector of bytes

A call that its caller gave up may still run, and so may its repetition: every message carries
actor, incarnation and sequence number, and the Ledger lets each through once.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm import ports
from impala_mm.ledger import ACCEPTED, DENIED, DISPLACED, LOST, STALE, Ledger

PROTOCOL = 1
_LIMIT = 3 << 20  # bytes of content per message; gRPC's own limit is 4 MiB
_KEPT_SECONDS = 60.0  # pieces whose sender vanished, versions that nobody goes on reading


class Header(NamedTuple):
    """What names a message; travels as int64 [6]."""

    nonce: int  # of the learner process that the sender said hello to
    actor: int
    incarnation: int  # of the actor's process
    sequence: int  # 0, 1, 2... within an incarnation
    version: int  # the oldest policy version that acted in these unrolls
    pieces: int  # how many pieces hold the content; 0: it is in the message itself


class Refused(Exception):
    """The learner will not work with this actor; says why."""


class Unreachable(Exception):
    """No answer in time; the learner may be away, or busy."""


class Arrival(NamedTuple):
    """What `enqueue` tells the learner besides the unrolls: [K, 3] finished episodes."""

    actor: int
    episodes: np.ndarray  # float32 [K, 3]: (1 for a whole game else 0, return, steps)


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
    ):
        """Listens on `bind_address`; compares `identity` with that of each actor that says hello.

        Raises OSError, naming the address and its holder, where another process has the port.
        """
        self.nonce = secrets.randbits(62)
        self.run_id = identity["run_id"]
        # (content of one unroll, its policy version): in TensorFlow, whose blocking enqueue is the
        # back-pressure: a call that waits here holds a thread of its own, and no other call up.
        self.queue = tf.queue.FIFOQueue(queue_capacity, [tf.string, tf.int64], [[], []])
        self.capacity = queue_capacity
        self.version = -1
        self._identity = identity | {"protocol": PROTOCOL, "nonce": self.nonce}
        self._on_event = on_event
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._snapshots: dict[int, bytes] = {}  # the newest, and those that are being read
        self._readers: dict[int, tuple[int, float]] = {}  # what each reads, and when it last did
        self._pieces: dict[tuple[int, int, int], _Pieces] = {}
        self._arrivals: list[Arrival] = []
        self.actors: dict[int, _Seen] = {}
        self._closed = False
        self.stale = 0  # messages dropped because they were had, or meant for another process
        self.refused = 0

        ports.check_free(bind_address)
        self._server = tf.distribute.experimental.rpc.Server.create("grpc", bind_address)
        for name, function in self._functions(token).items():
            self._server.register(name, function)
        self._server.start()
        # A port taken in the meantime raises nothing: only our own answer proves that we listen.
        try:
            answer = Client(address, token, timeout=10).hello({"probe": True})
        except (Refused, Unreachable) as error:
            raise OSError(f"{address} does not lead here: {error}") from None
        if answer["nonce"] != self.nonce:
            raise OSError(f"{address} is answered by another learner{ports.holder(bind_address)}")

    # -- the learner's side

    def publish(self, version: int, vector: bytes) -> None:
        """Makes `vector` what actors get from now on; readers of an older one may finish it."""
        oldest = time.monotonic() - _KEPT_SECONDS
        with self._lock:
            self._readers = {r: held for r, held in self._readers.items() if held[1] > oldest}
            wanted = {held_version for held_version, _ in self._readers.values()}
            self._snapshots = {v: s for v, s in self._snapshots.items() if v in wanted}
            self._snapshots[version] = vector
            self.version = version

    def arrivals(self) -> list[Arrival]:
        """What came with unrolls since the last call."""
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def silent(self, seconds: float) -> list[int]:
        """Actors from which nothing came for so long; they are forgotten, and said to have left."""
        deadline = time.monotonic() - seconds
        with self._lock:
            gone = [actor for actor, seen in self.actors.items() if seen.last < deadline]
            for actor in gone:
                del self.actors[actor]
        return gone

    def close(self) -> None:
        """Lets go of actors that wait, and takes no new ones; what was being sent is dropped."""
        self._closed = True
        self.queue.close(cancel_pending_enqueues=True)

    # -- the four functions; their Python parts hold no lock while they wait, and never wait long

    def _functions(self, token: str) -> dict[str, Any]:
        text, numbers = tf.TensorSpec([], tf.string), tf.TensorSpec([6], tf.int64)
        contents = tf.TensorSpec([None], tf.string)
        episodes = tf.TensorSpec([None, 3], tf.float32)

        def known(given: tf.Tensor) -> tf.Tensor:
            return tf.equal(given, token)

        @tf.function(input_signature=[text, text])
        def hello(given, request):
            if known(given):
                answer = tf.numpy_function(self._hello, [request], tf.string)
            else:
                answer = tf.numpy_function(self._no_token, [], tf.string)
            return tf.ensure_shape(answer, [])

        @tf.function(input_signature=[text, numbers, contents, episodes])
        def enqueue(given, header, content, finished):
            code = tf.constant(DENIED, tf.int64)
            if known(given):
                code = tf.numpy_function(self._begin, [header], tf.int64)
                code = tf.ensure_shape(code, [])
                if tf.equal(code, ACCEPTED):
                    if header[5] > 0:
                        content = tf.numpy_function(self._join, [header], tf.string)
                        content = tf.ensure_shape(content, [None])
                    versions = tf.fill([tf.size(content)], header[4])
                    with tf.control_dependencies([self.queue.enqueue_many([content, versions])]):
                        code = tf.numpy_function(self._end, [header, finished], tf.int64)
                        code = tf.ensure_shape(code, [])
            return tf.stack([code, *self._state()])

        @tf.function(input_signature=[text, numbers, tf.TensorSpec([2], tf.int64), text])
        def piece(given, header, place, content):
            code = tf.constant(DENIED, tf.int64)
            if known(given):
                code = tf.numpy_function(self._piece, [header, place, content], tf.int64)
                code = tf.ensure_shape(code, [])
            return code

        @tf.function(input_signature=[text, tf.TensorSpec([3], tf.int64)])
        def get_parameters(given, wanted):
            found, content = tf.constant([-1, 0], tf.int64), tf.constant(b"")
            if known(given):
                found, content = tf.numpy_function(
                    self._get_parameters, [wanted], [tf.int64, tf.string]
                )
                found, content = tf.ensure_shape(found, [2]), tf.ensure_shape(content, [])
            return found, content

        return {
            "hello": hello,
            "enqueue": enqueue,
            "piece": piece,
            "get_parameters": get_parameters,
        }

    def _state(self) -> list[tf.Tensor]:
        """What every answer carries: the queue's fill and the newest version."""
        state = tf.numpy_function(lambda: np.int64(self.version), [], tf.int64)
        return [tf.cast(self.queue.size(), tf.int64), tf.ensure_shape(state, [])]

    def _hello(self, request: bytes) -> np.ndarray:
        if self._closed:
            raise RuntimeError("the run has ended")  # for the caller, as if nobody were here
        asked = json.loads(request)
        answer = dict(self._identity)
        if not asked.get("probe"):
            for key in ("protocol", "level_name", "network", "unroll", "acting"):
                if asked.get(key) != self._identity.get(key):
                    answer["refused"] = (
                        f"this actor's {_WORDS[key]} is {asked.get(key)}, the learner's is "
                        f"{self._identity.get(key)}"
                    )
                    break
            actor = int(asked["actor"])
            if "refused" in answer:
                self.refused += 1
                self._on_event(f"actor {actor} on {asked['host']} refused: {answer['refused']}")
            else:
                self._ledger.join(actor, int(asked["incarnation"]))
                with self._lock:
                    self.actors[actor] = _Seen(asked["host"])
                self._on_event(f"actor {actor} on {asked['host']} joined")
        return np.array(json.dumps(answer).encode(), object)

    def _no_token(self) -> np.ndarray:
        self.refused += 1
        self._on_event("a caller without the run's token was refused")
        refused = (
            "the learner's token is another: copy its token file to this host "
            "(scp LEARNER:.config/impala_mm/token ~/.config/impala_mm/token), or name it with "
            "--token_file"
        )
        return np.array(json.dumps({"refused": refused, "nonce": -1}).encode(), object)

    def _begin(self, numbers: np.ndarray) -> np.int64:
        header = Header(*map(int, numbers))
        message = header[1:4]
        if header.nonce != self.nonce:
            self.stale += 1
            return np.int64(STALE)
        code = self._ledger.begin(*message)
        with self._lock:
            pieces = self._pieces.get(message)
            if code != ACCEPTED:
                self._pieces.pop(message, None)
        if code == ACCEPTED and header.pieces != (len(pieces.parts) if pieces else 0):
            self._ledger.end(*message, done=False)
            return np.int64(LOST)
        self.stale += code == STALE
        return np.int64(code)

    def _end(self, numbers: np.ndarray, finished: np.ndarray) -> np.int64:
        header = Header(*map(int, numbers))
        self._ledger.end(*header[1:4])
        with self._lock:
            self._arrivals.append(Arrival(header.actor, finished))
            if header.actor in self.actors:
                self.actors[header.actor].last = time.monotonic()
        return np.int64(ACCEPTED)

    def _piece(self, numbers: np.ndarray, place: np.ndarray, content: bytes) -> np.int64:
        """Keeps part `index` of unroll `unroll`; frees those of senders that vanished."""
        header, now = Header(*map(int, numbers)), time.monotonic()
        if header.nonce != self.nonce:
            return np.int64(STALE)
        unroll, index = map(int, place)
        with self._lock:
            for key in [k for k, p in self._pieces.items() if now - p.last > _KEPT_SECONDS]:
                del self._pieces[key]
            pieces = self._pieces.setdefault(header[1:4], _Pieces())
            pieces.last = now
            pieces.parts[unroll, index] = bytes(content)
        return np.int64(ACCEPTED)

    def _join(self, numbers: np.ndarray) -> np.ndarray:
        header = Header(*map(int, numbers))
        with self._lock:
            parts = self._pieces.pop(header[1:4]).parts
        unrolls: dict[int, list[bytes]] = {}
        for (unroll, _), content in sorted(parts.items()):
            unrolls.setdefault(unroll, []).append(content)
        return np.array([b"".join(contents) for contents in unrolls.values()], object)

    def _get_parameters(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A piece from `offset` of `version` (-1: the newest), and (version, total bytes)."""
        version, offset, reader = map(int, wanted)
        with self._lock:
            version = self.version if version < 0 else version
            vector = self._snapshots.get(version)
            if vector is None:
                return np.array([-1, 0]), np.array(b"", object)
            self._readers[reader] = version, time.monotonic()
            if offset + _LIMIT >= len(vector):
                del self._readers[reader]
        content = vector[offset : offset + _LIMIT]
        return np.array([version, len(vector)]), np.array(content, object)


_WORDS = {
    "protocol": "protocol version",
    "level_name": "environment (--level_name)",
    "unroll": "unroll layout (--unroll_length, observations, actions)",
    "network": "network (--agent_name)",
    "acting": "layout of parameters",
}


class _Pieces:
    """The parts of one message that have come."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], bytes] = {}
        self.last = time.monotonic()


class _Seen:
    """An actor that said hello."""

    def __init__(self, host: str):
        self.host = host
        self.last = time.monotonic()


class Client:
    """An actor's end. Every call has a deadline."""

    def __init__(self, address: str, token: str, timeout: float = 30.0):
        self._token = tf.constant(token)
        self._timeout = int(timeout * 1000)
        self._reader = secrets.randbits(62)
        self.nonce = -1
        self.version = -1  # the newest of the learner's, as last heard
        self.queue_fill = 0
        try:
            self._rpc = tf.distribute.experimental.rpc.Client.create(
                "grpc", address, name=secrets.token_hex(8), timeout_in_ms=min(self._timeout, 5000)
            )
        except tf.errors.OpError as error:
            raise Unreachable(f"nothing answers at {address} ({type(error).__name__})") from None

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """The learner's identity; Refused with its sentence where it will not have us."""
        answer = self._call("hello", json.dumps(request).encode(), result=_TEXT)
        identity = json.loads(answer.numpy())
        if "refused" in identity:
            raise Refused(identity["refused"])
        self.nonce = identity["nonce"]
        return identity

    def enqueue(self, header: Header, contents: Sequence[bytes], episodes: np.ndarray) -> int:
        """Sends unrolls until the learner has them, each once: ACCEPTED, or STALE if it had them.

        Unreachable where no answer came in time: the same call again is safe.
        """
        large = sum(map(len, contents)) > _LIMIT
        code = LOST
        while True:
            if large and code == LOST:
                header = header._replace(pieces=self._send_pieces(header, contents))
            inline = [] if large else list(contents)
            answer = self._call(
                "enqueue",
                tf.constant(list(header), tf.int64),
                tf.constant(inline, tf.string, [len(inline)]),
                tf.constant(episodes, tf.float32, [len(episodes), 3]),
                result=_NUMBERS,
            )
            code, self.queue_fill, self.version = map(int, answer.numpy())
            if code == DENIED:
                raise Refused("the learner's token is another")
            if code == DISPLACED:
                raise Refused("another process is this actor now: give each its own --task")
            if code in {ACCEPTED, STALE}:
                return code
            time.sleep(0.05)  # our own earlier call still waits for room in the queue

    def _send_pieces(self, header: Header, contents: Sequence[bytes]) -> int:
        """Content too large for a message, ahead of it; the number of pieces."""
        count = 0
        for unroll, content in enumerate(contents):
            for index, offset in enumerate(range(0, len(content), _LIMIT)):
                part = content[offset : offset + _LIMIT]
                place = tf.constant([unroll, index], tf.int64)
                self._call(
                    "piece", tf.constant(list(header), tf.int64), place, part, result=_NUMBER
                )
                count += 1
        return count

    def get_parameters(self) -> tuple[int, bytes]:
        """The newest parameters and their version, whole: every piece is of that version."""
        version, parts, done, total = -1, [], 0, 1
        while done < total:
            wanted = tf.constant([version, done, self._reader], tf.int64)
            found, content = self._call("get_parameters", wanted, result=(_NUMBERS, _TEXT))
            got, total = map(int, found.numpy())
            if got < 0 or (version >= 0 and got != version):
                raise Unreachable("the learner has no parameters yet, or dropped this version")
            version = got
            parts.append(content.numpy())
            done += len(parts[-1])
        return version, b"".join(parts)

    def _call(self, function: str, *arguments: Any, result: Any) -> Any:
        call = self._rpc.call(
            function,
            [self._token, *map(tf.convert_to_tensor, arguments)],
            output_specs=result,
            timeout_in_ms=self._timeout,
        )
        if not call.is_ok():
            code, message = call.get_error()
            first = message.numpy().decode(errors="replace").split("\n")[0]
            raise Unreachable(f"{function}: {first or f'error {int(code)}'}")
        return call.get_value()


_TEXT = tf.TensorSpec([], tf.string)
_NUMBER = tf.TensorSpec([], tf.int64)
_NUMBERS = tf.TensorSpec([None], tf.int64)
