"""An actor's end of the connection: unrolls up, parameters down.

Only this package knows the mechanism: TensorFlow's RPC (`tf.distribute.experimental.rpc`). The
learner offers five functions (`endpoints`); a Client calls them. Every call has a deadline.
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
from impala_mm.transport.messages import (
    CONTENT_OMITTED,
    MAX_CONTENT,
    NO_NONCE,
    NO_POLICY,
    PROTOCOL,
    STAY,
    InferenceRequest,
    ParametersReply,
    ParametersRequest,
    Reply,
    UnrollHeader,
    UnrollReply,
    run_number,
)


class Refused(Exception):
    """The learner will not work with this actor; says why."""


class Unreachable(Exception):
    """No answer in time; the learner may be away, or busy."""

    def __init__(self, message: str, late: bool = False):
        """`late`: no more is known than that its time was over."""
        super().__init__(message)
        self.late = late


class StillRunning(Exception):
    """The call that this one repeats has not ended yet: ask again in a while."""


class GroupUnknown(Exception):
    """The learner does not know this group of environments: it is another process, or had given
    this actor up.
    """


class Client:
    """An actor's connection to one learner."""

    def __init__(self, address: str, token: str, timeout: float = 30.0):
        self._token, self._no_episodes = tf.constant(token), tf.zeros([0, 3])
        self._timeout = int(timeout * 1000)
        self._reader = secrets.randbits(62)
        # Of the learner, once it has answered `hello`:
        self.nonce: int | None = None
        self.run: int | None = None
        self.learners: list[str] = []  # addresses of all, by rank, where it may send us to another
        self.version: int | None = None  # its newest policy, as last heard
        self.queue_fill = 0
        self.next_learner: int | None = None  # that is to have the next unrolls; None: this one
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
        """Return the learner's identity; raises Refused with its sentence where it will not have
        this actor.
        """
        request = {"protocol": PROTOCOL} | request
        [answer] = self._call("hello", json.dumps(request).encode(), result=_TEXT)
        identity = json.loads(answer.numpy())
        if "refused" in identity:
            raise Refused(identity["refused"])
        self.nonce, self.run = identity["nonce"], run_number(identity["run_id"])
        self.learners = identity["learners"] if identity.get("moves") else []
        return identity

    def still_answers(self) -> bool:
        """Return whether the learner that answered `hello` still answers: then its queue is full,
        no more.
        """
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
        is_repeat: bool = False,
        timeout: float | None = None,
    ) -> Reply:
        """Send unrolls until the learner has them, once: ACCEPTED, or STALE if it had them before.

        FOREIGN: they were meant for another process, and are dropped. RUNNING: an earlier call of
        the same brings them in, and another learner needs this actor more. Raises Unreachable where
        no answer came in time, within `timeout` seconds if given: the same call is safe, and with
        `is_repeat` asks without the content whether it has arrived.
        """
        large = sum(map(len, contents)) > MAX_CONTENT
        reply, delay = Reply.RUNNING if is_repeat else Reply.LOST, 0.02
        while True:
            inline: list[bytes] = []
            if reply == Reply.RUNNING:  # its content may be there: asked without
                header = header._replace(chunks=CONTENT_OMITTED)
            elif large:
                header = header._replace(chunks=self._send_chunks(header, contents))
            else:
                header, inline = header._replace(chunks=0), list(contents)
            [answer] = self._call(
                "enqueue",
                tf.constant(list(header), tf.int64),
                tf.constant(inline, tf.string, [len(inline)]),
                tf.constant(episodes, tf.float32, [len(episodes), 3]),
                result=_NUMBERS,
                timeout=int((timeout or 0) * 1000),
            )
            told = UnrollReply(*map(int, answer.numpy()))
            reply, self.queue_fill = Reply(told.reply), told.queue_fill
            self.version = None if told.version == NO_POLICY else told.version
            self.next_learner = None if told.next_learner == STAY else told.next_learner
            _raise_if_refused(reply)
            if reply in {Reply.ACCEPTED, Reply.STALE, Reply.FOREIGN}:
                return reply
            if reply == Reply.RUNNING:
                if self.next_learner is not None:
                    return reply
                time.sleep(delay)  # our own earlier call still waits for room in the queue
                delay = min(delay * 1.5, 1.0)

    def _send_chunks(self, header: UnrollHeader, contents: Sequence[bytes]) -> int:
        """Send content that is too large for a message ahead of it; return the number of chunks."""
        count = 0
        for unroll, content in enumerate(contents):
            for index, offset in enumerate(range(0, len(content), MAX_CONTENT)):
                part = content[offset : offset + MAX_CONTENT]
                position = tf.constant([unroll, index], tf.int64)
                self._call(
                    "chunk", tf.constant(list(header), tf.int64), position, part, result=_NUMBERS
                )
                count += 1
        return count

    def get_parameters(self, min_version: int = 0) -> tuple[int, bytes] | None:
        """Return the newest policy version and its parameters, whole.

        None where the learner has none of at least `min_version` yet.
        """
        version, parts, done, total = NO_POLICY, [], 0, 1
        while done < total:
            request = ParametersRequest(version, done, self._reader, min_version)
            numbers, content = self._call(
                "get_parameters", tf.constant(request, tf.int64), result=_BOTH
            )
            reply = ParametersReply(*map(int, numbers.numpy()))
            if reply.nonce not in {self.nonce, NO_NONCE}:
                raise Unreachable("get_parameters: another learner answers here now")
            if reply.version == NO_POLICY and version == NO_POLICY:
                return None
            if version not in {NO_POLICY, reply.version}:
                raise Unreachable("get_parameters: the learner dropped this version meanwhile")
            version, total = reply.version, reply.total
            parts.append(content.numpy())
            done += len(parts[-1])
        return version, b"".join(parts)

    def request_actions(
        self, request: InferenceRequest, content: bytes, episodes: np.ndarray
    ) -> rpc.PendingCall:
        """Start a call for a group's next actions after its step."""
        # Of a list TensorFlow would look at each number; and hardly ever has an episode ended.
        header = tf.constant(np.array(request, np.int64))
        ended = tf.constant(episodes) if len(episodes) else self._no_episodes
        arguments = [self._token, header, tf.constant(content), ended]
        return self._rpc.start("infer", arguments, _BOTH)

    def _call(
        self, function: str, *arguments: Any, result: Sequence[tf.DType], timeout: int = 0
    ) -> list[tf.Tensor]:
        tensors = [self._token, *map(tf.convert_to_tensor, arguments)]
        return wait_for_answer(function, self._rpc.start(function, tensors, result, timeout))


class PendingInference:
    """A request for actions that is on its way."""

    def __init__(
        self, client: Client, request: InferenceRequest, content: bytes, episodes: np.ndarray
    ):
        self._client, self._message = client, (request, content, episodes)
        self._call: rpc.PendingCall | None = client.request_actions(*self._message)

    def wait_for_actions(self) -> np.ndarray:
        """Return the actions, int32 [E].

        Raises GroupUnknown where the learner does not know this group any more; Unreachable where
        no answer came in time, StillRunning where an earlier call has to: waiting once more asks
        again, and brings what the first call would have brought.
        """
        call, self._call = self._call or self._client.request_actions(*self._message), None
        numbers, actions = wait_for_answer("infer", call)
        code, version = numbers.numpy().tolist()
        self._client.version = None if version == NO_POLICY else version
        _raise_if_refused(code)
        if code == Reply.ACCEPTED:
            return np.frombuffer(actions.numpy(), np.int32)
        if code != Reply.RUNNING:
            raise GroupUnknown
        self._message = self._message[0], b"", np.zeros([0, 3], np.float32)  # they are there
        raise StillRunning

    def wait_until_done(self) -> None:
        """Wait until nothing is on its way any more, whatever comes of it."""
        if self._call:
            self._call.wait()


def wait_for_answer(function: str, call: rpc.PendingCall) -> list[tf.Tensor]:
    """Return what a call answers; raises Unreachable where it fails."""
    code, message = call.wait()
    if code:
        first = message.split("\n")[0]
        late = code in {tf.errors.DEADLINE_EXCEEDED, tf.errors.UNAVAILABLE}
        # Not by way of a name here: this frame would keep itself, and with it the call.
        raise Unreachable(f"{function}: {first or f'error {code}'}", late)
    return call.answer()


def _raise_if_refused(reply: int) -> None:
    if reply == Reply.DENIED:
        raise Refused("the learner's token is another")
    if reply == Reply.DISPLACED:
        raise Refused("another process is this actor now: give each its own --task")


_TEXT, _NUMBERS, _BOTH = [tf.string], [tf.int64], [tf.int64, tf.string]
