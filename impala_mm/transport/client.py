"""How an actor talks to its learner: unrolls up, parameters down.

Only this file and `server` know the mechanism: TensorFlow's RPC (`tf.distribute.experimental.rpc`).
The learner's Server offers five functions, each checks the run's token first; an actor's Client
calls them.

    hello           who are you, what do you run; answers or refuses with a sentence
    enqueue         a group of unrolls into the learner's queue; blocks while the queue is full
    piece           a part of unrolls too large for one message, before their enqueue
    get_parameters  a piece of the newest parameters, as one flat vector of bytes
    infer           what a step brought, for the next actions, where the learner infers

A call that its caller gave up may still run, and so may its repetition: every message carries
actor, incarnation and sequence number, and the Ledger lets each through once.
"""

import json
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.runtime import ports
from impala_mm.transport import rpc
from impala_mm.transport.delivery import ACCEPTED, DENIED, DISPLACED, FOREIGN, LOST, RUNNING, STALE
from impala_mm.transport.messages import MAX_CONTENT, InferenceRequest, UnrollHeader, run_number


class Refused(Exception):
    """The learner will not work with this actor; says why."""


class Unreachable(Exception):
    """No answer in time; the learner may be away, or busy."""

    def __init__(self, message: str, late: bool = False):
        """`late`: no more is known than that its time was over."""
        super().__init__(message)
        self.late = late


class StillRunning(Exception):
    """The call that this one repeats has not come to its end: ask again in a while."""


class GroupUnknown(Exception):
    """The learner does not know what it acted for: it is another, or had given this actor up."""


class Client:
    """An actor's end. Every call has a deadline."""

    def __init__(self, address: str, token: str, timeout: float = 30.0):
        self._token, self._no_episodes = tf.constant(token), tf.zeros([0, 3])
        self._timeout = int(timeout * 1000)
        self._reader = secrets.randbits(62)
        self.nonce = self.run = -1
        self.learners: list[str] = []  # addresses of all, in the order by which we are sent to them
        self.version = -1  # the newest of the learner's, as last heard
        self.queue_fill = 0
        self.go_to = -1  # the learner that is to have the next unrolls; -1: this one
        try:  # where nobody listens, the client below would leave its threads behind
            socket.create_connection(ports.split_address(address), min(timeout, 5)).close()
        except OSError as error:
            raise Unreachable(f"nothing answers at {address} ({error.strerror or error})") from None
        try:
            client = tf.distribute.experimental.rpc.Client.create(
                "grpc", address, name=secrets.token_hex(8), timeout_in_ms=min(self._timeout, 5000)
            )
        except tf.errors.OpError as error:
            raise Unreachable(f"nothing answers at {address} ({type(error).__name__})") from None
        self._rpc = rpc.RpcCaller(client, self._timeout)

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """The learner's identity; Refused with its sentence where it will not have us."""
        [answer] = self._call("hello", json.dumps(request).encode(), result=_TEXT)
        identity = json.loads(answer.numpy())
        if "refused" in identity:
            raise Refused(identity["refused"])
        self.nonce, self.run = identity["nonce"], run_number(identity["run_id"])
        self.learners = identity["learners"] if identity.get("moves") else []
        return identity

    def is_there(self) -> bool:
        """Whether the learner we said hello to answers still: then its queue is full, no more."""
        try:
            request = json.dumps({"probe": True}).encode()
            timeout = min(self._timeout, 5000)
            [answer] = self._call("hello", request, result=_TEXT, timeout=timeout)
        except Unreachable:
            return False
        return json.loads(answer.numpy())["nonce"] == self.nonce

    def enqueue(
        self,
        header: UnrollHeader,
        contents: Sequence[bytes],
        episodes: np.ndarray,
        again: bool = False,
        seconds: float | None = None,
    ) -> int:
        """Sends unrolls until the learner has them, each once: ACCEPTED, or STALE if it had them.

        FOREIGN: they were meant for another process, and are dropped. RUNNING: an earlier call of
        the same will bring them in, and another learner needs this actor more. Unreachable where no
        answer came in time, within `seconds` if given: the same call is safe, and with `again` asks
        without the content whether it has arrived.
        """
        large = sum(map(len, contents)) > MAX_CONTENT
        code, delay = RUNNING if again else LOST, 0.02
        while True:
            inline: list[bytes] = []
            if code == RUNNING:  # its content may be there: asked without
                header = header._replace(pieces=-1)
            elif large:
                header = header._replace(pieces=self._send_pieces(header, contents))
            else:
                header, inline = header._replace(pieces=0), list(contents)
            [answer] = self._call(
                "enqueue",
                tf.constant(list(header), tf.int64),
                tf.constant(inline, tf.string, [len(inline)]),
                tf.constant(episodes, tf.float32, [len(episodes), 3]),
                result=_NUMBERS,
                timeout=int((seconds or 0) * 1000),
            )
            code, self.queue_fill, self.version, self.go_to = map(int, answer.numpy())
            if code == DENIED:
                raise Refused("the learner's token is another")
            if code == DISPLACED:
                raise Refused("another process is this actor now: give each its own --task")
            if code in {ACCEPTED, STALE, FOREIGN} or (code == RUNNING and self.go_to >= 0):
                return code
            if code == RUNNING:
                time.sleep(delay)  # our own earlier call still waits for room in the queue
                delay = min(delay * 1.5, 1.0)

    def _send_pieces(self, header: UnrollHeader, contents: Sequence[bytes]) -> int:
        """Content too large for a message, ahead of it; the number of pieces."""
        count = 0
        for unroll, content in enumerate(contents):
            for index, offset in enumerate(range(0, len(content), MAX_CONTENT)):
                part = content[offset : offset + MAX_CONTENT]
                place = tf.constant([unroll, index], tf.int64)
                self._call(
                    "piece", tf.constant(list(header), tf.int64), place, part, result=_NUMBERS
                )
                count += 1
        return count

    def get_parameters(self, min_version: int = 0) -> tuple[int, bytes] | None:
        """The newest parameters and their version, whole: every piece is of that version.

        None where the learner has none of at least `min_version` yet.
        """
        version, parts, done, total = -1, [], 0, 1
        while done < total:
            wanted = tf.constant([version, done, self._reader, min_version], tf.int64)
            found, content = self._call("get_parameters", wanted, result=_BOTH)
            got, total, nonce = map(int, found.numpy())
            if nonce not in {self.nonce, -1}:
                raise Unreachable("get_parameters: another learner answers here now")
            if got < 0 and version < 0:
                return None
            if got != version >= 0:
                raise Unreachable("get_parameters: the learner dropped this version meanwhile")
            version = got
            parts.append(content.numpy())
            done += len(parts[-1])
        return version, b"".join(parts)

    def ask(
        self, asking: InferenceRequest, content: bytes, episodes: np.ndarray
    ) -> rpc.PendingCall:
        """Asks for a group's next actions after its step; `PendingInference` waits for the call."""
        # Of a list TensorFlow would look at each number; and hardly ever has an episode ended.
        header = tf.constant(np.array(asking, np.int64))
        ended = tf.constant(episodes) if len(episodes) else self._no_episodes
        arguments = [self._token, header, tf.constant(content), ended]
        return self._rpc.begin("infer", arguments, _BOTH)

    def _call(
        self, function: str, *arguments: Any, result: Sequence[tf.DType], timeout: int = 0
    ) -> list[tf.Tensor]:
        tensors = [self._token, *map(tf.convert_to_tensor, arguments)]
        return wait_for_result(function, self._rpc.begin(function, tensors, result, timeout))


class PendingInference:
    """A call for actions that is on its way."""

    def __init__(
        self, client: Client, asking: InferenceRequest, content: bytes, episodes: np.ndarray
    ):
        self._client, self._said = client, (asking, content, episodes)
        self._call: rpc.PendingCall | None = client.ask(*self._said)

    def actions(self) -> np.ndarray:
        """Waits for them: int32 [E].

        Lost where the learner does not know this group any more; Unreachable where no answer came
        in time, StillRunning where an earlier call has to: waiting once more asks again, and brings
        what the first call would have brought.
        """
        call, self._call = self._call or self._client.ask(*self._said), None
        numbers, actions = wait_for_result("infer", call)
        code, self._client.version = numbers.numpy().tolist()
        if code == ACCEPTED:
            return np.frombuffer(actions.numpy(), np.int32)
        if code == DENIED:
            raise Refused("the learner's token is another")
        if code == DISPLACED:
            raise Refused("another process is this actor now: give each its own --task")
        if code != RUNNING:
            raise GroupUnknown
        self._said = self._said[0], b"", np.zeros([0, 3], np.float32)  # they are there
        raise StillRunning

    def settle(self) -> None:
        """Waits until nothing is on its way any more, whatever came of it."""
        if self._call:
            self._call.error()


def wait_for_result(function: str, call: rpc.PendingCall) -> list[tf.Tensor]:
    """Waits for a call; Unreachable where it did not come to its end."""
    code, message = call.error()
    if code:
        first = message.split("\n")[0]
        late = code in {tf.errors.DEADLINE_EXCEEDED, tf.errors.UNAVAILABLE}
        # Not by way of a name here: this frame would keep itself, and with it the call.
        raise Unreachable(f"{function}: {first or f'error {code}'}", late)
    return call.answer()


_TEXT, _NUMBERS, _BOTH = [tf.string], [tf.int64], [tf.int64, tf.string]
