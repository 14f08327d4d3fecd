"""The actor's end of the connection: it sends messages and downloads parameters.

Only this package knows the mechanism: TensorFlow's RPC (`tf.distribute.experimental.rpc`). The
learner offers six functions (`server`); a `Client` calls them, with a deadline for each call.
"""

import json
import re
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.distribute.experimental.rpc.kernels import gen_rpc_ops

from impala_mm.data.episodes import FIELDS
from impala_mm.runtime import starter
from impala_mm.transport import route
from impala_mm.transport.messages import (
    CONTENT_OMITTED,
    MAX_CONTENT,
    NO_NONCE,
    NO_POLICY,
    PROTOCOL,
    RUN_ENDED,
    STAY,
    UNROLLS,
    MessageHeader,
    ParametersReply,
    ParametersRequest,
    Reply,
    run_number,
)
from impala_mm.transport.tls import Credentials


class Refused(Exception):
    """The learner refuses this actor; the message gives the reason."""


class Unreachable(Exception):
    """A call failed or got no answer in time; the learner may be down, or busy."""

    def __init__(self, message: str, late: bool = False, ended: bool = False):
        """Set `late` if no answer came in time; otherwise the call failed with an error.

        Set `ended` if the learner has ended, as it does at the end of each run.
        """
        super().__init__(message)
        self.late, self.ended = late, ended

    @property
    def log_line(self) -> str:
        """The sentence that an actor logs when its learner does not answer any more."""
        what = str(self) if self.ended else f"the learner does not answer ({self})"
        return f"{what}; trying again"


class OtherRun(Unreachable):
    """The learner at this address belongs to another run; this actor's own may come back to it."""


class StreamLost(Exception):
    """The learner lacks the earlier messages of a stream.

    The learner was restarted or has forgotten this actor: the stream must start over.
    """


class Client:
    """An actor's connection to one learner."""

    def __init__(self, address: str, token: str, timeout: float = 30.0, from_outside: bool = False):
        """Connect to a learner; `token` is the content of the token file.

        `timeout` is in seconds, for each call. `from_outside`: dial the address as other hosts do,
        also on the learner's machine. Raises Refused if the learner's token file is another one.
        """
        credentials = Credentials.parse(token)
        self._token = tf.constant(credentials.token)
        self.no_content, self.no_episodes = tf.zeros([0], tf.string), tf.zeros([0, FIELDS])
        self._timeout, self._default = timeout, _milliseconds(timeout)
        self._names = dict[str, tf.Tensor]()  # of functions
        self._reader = secrets.randbits(62)
        # About the learner, once it has answered `hello`. The nonce is a random number that
        # identifies the learner process; after a restart it is a different one.
        self.nonce: int | None = None
        self.run: int | None = None  # number of the run, see `run_number`
        # Addresses of all learners by rank, if it may redirect the actor.
        self.learners: list[str] = []
        self.version: int | None = None  # its policy version in its last reply
        self.environments = 0  # `NumberRange.bound` in its last reply
        self.next_learner: int | None = None  # rank of the learner to feed next; None: this one
        # The version that plays the columns of a round that its last reply granted, if it did.
        self.granted: int | None = None
        try:  # an RPC client without a server would leave its threads behind
            self._target = route.find(address, credentials, min(timeout, 5), from_outside)
        except route.NotAccepted as error:
            raise Refused(str(error)) from None
        except OSError as error:
            raise Unreachable(f"nothing answers at {address} ({error.strerror or error})") from None
        try:
            self._rpc = tf.distribute.experimental.rpc.Client.create(
                *("grpc", self._target),
                name=secrets.token_hex(8),
                timeout_in_ms=int(min(timeout, 5) * 1000),
            )
        except tf.errors.OpError as error:
            raise Unreachable(f"nothing answers at {address} ({type(error).__name__})") from None

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """Introduce this actor, and return the learner's identity.

        Raises Refused, with the learner's reason, if the learner does not accept the actor, and
        OtherRun if it belongs to another run.
        """
        own = {"host": socket.gethostname(), "start": starter.start_id()}
        own["host_name"] = starter.host_name()
        request = {"protocol": PROTOCOL} | own | request
        identity = self._greet(request)
        if "other_run" in identity:
            raise OtherRun(identity["other_run"])
        if "refused" in identity:
            raise Refused(identity["refused"])
        self.nonce, self.run = identity["nonce"], run_number(identity["run_id"])
        self.learners = identity["learners"] if identity.get("moves") else []
        return identity

    def still_answers(self) -> bool:
        """Return whether the learner process that answered `hello` still answers.

        If it does, a call that got no answer was waiting for room in the learner's queue.
        """
        try:
            answer = self._greet({"probe": True}, timeout=min(self._timeout, 5))
        except Unreachable:
            return False
        return answer["nonce"] == self.nonce

    def _greet(self, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Call `hello`, and return its answer; the connection now exists."""
        [answer] = self._call("hello", json.dumps(request).encode(), result=_TEXT, timeout=timeout)
        route.watch(self._target)
        return json.loads(answer.numpy())

    def header(self, actor: int, incarnation: int, stream: int = UNROLLS) -> MessageHeader:
        """Return the header of a stream's first message to this learner."""
        assert self.nonce is not None
        assert self.run is not None
        return MessageHeader(self.nonce, self.run, actor, incarnation, stream)

    def enqueue(
        self,
        header: MessageHeader,
        contents: Sequence[bytes],
        episodes: np.ndarray,
        is_repeat: bool = False,
        timeout: float | None = None,
    ) -> Reply:
        """Send unrolls and wait until the learner has them exactly once.

        Returns ACCEPTED; STALE if an earlier call delivered them; FOREIGN if they were addressed to
        another learner process, so this one dropped them; or RUNNING if an earlier call is still
        delivering them and `next_learner` needs this actor more.

        Raises Unreachable if a call gets no answer within `timeout` seconds. It is then safe to
        call this again, with `is_repeat`.
        """
        delivery = Delivery(self, header, contents, episodes, is_repeat, timeout)
        delay = 0.02
        while (reply := delivery.wait()) == Reply.RUNNING and self.next_learner is None:
            time.sleep(delay)  # the earlier call waits for room in the queue
            delay = min(delay * 1.5, 1.0)
        return reply

    def claim(self, header: MessageHeader) -> Reply:
        """Claim columns of the learner's round for `header.environments` environments.

        Returns FOREIGN, or ACCEPTED: `granted` has the policy version that plays them, or None if
        the actor must wait and repeat the claim. Raises Refused where `Delivery.wait` does.
        """
        [numbers] = self._call("claim", tf.constant(header, tf.int64), result=_NUMBERS)
        return self.read_reply(numbers)

    def read_reply(self, numbers: tf.Tensor) -> Reply:
        """Keep what a MessageReply says about the learner, and return its verdict.

        Raises Refused where `Delivery.wait` does.
        """
        code, version, next_learner, environments, granted = numbers.numpy().tolist()
        self.version = None if version == NO_POLICY else version
        self.environments = environments or self.environments
        self.next_learner = None if next_learner == STAY else next_learner
        self.granted = None if granted == NO_POLICY else granted
        refuse_denied(Reply(code))
        return Reply(code)

    def get_parameters(self) -> tuple[int, bytes] | None:
        """Return the newest policy version and its complete parameters; None before the first."""
        version, parts, done, total = NO_POLICY, [], 0, 1
        while done < total:
            request = ParametersRequest(version, done, self._reader)
            numbers, content = self._call(
                "get_parameters", tf.constant(request, tf.int64), result=_BOTH
            )
            reply = ParametersReply(*map(int, numbers.numpy()))
            if reply.nonce not in {self.nonce, NO_NONCE}:
                raise Unreachable("get_parameters: another learner process answers at this address")
            if reply.version == NO_POLICY and version == NO_POLICY:
                return None
            if version not in {NO_POLICY, reply.version}:
                raise Unreachable("get_parameters: the learner dropped this version before the end")
            version, total = reply.version, reply.total
            parts.append(content.numpy())
            done += len(parts[-1])
        return version, b"".join(parts)

    def start(
        self,
        function: str,
        arguments: Sequence[tf.Tensor],
        result: Sequence[tf.DType],
        timeout: float | None = None,
    ) -> "PendingCall":
        """Start a call and return without waiting; `result` has the types of its answer.

        `timeout` is in seconds; None: the client's.
        """
        name = self._names.get(function)
        if name is None:
            name = self._names[function] = tf.constant(function)
        future, deleter = gen_rpc_ops.rpc_call(
            self._rpc._client_handle,
            args=[self._token, *arguments],
            method_name=name,
            timeout_in_ms=_milliseconds(timeout) if timeout else self._default,
        )
        return PendingCall(function, future, deleter, result)

    def _call(
        self,
        function: str,
        *arguments: Any,
        result: Sequence[tf.DType],
        timeout: float | None = None,
    ) -> list[tf.Tensor]:
        tensors = list(map(tf.convert_to_tensor, arguments))
        return self.start(function, tensors, result, timeout).result()


def _milliseconds(seconds: float) -> tf.Tensor:
    # A Python number would take the slow path of TensorFlow's calls.
    return tf.constant(int(seconds * 1000), tf.int64)


class Delivery:
    """A message on its way to a learner, repeated until the learner has it exactly once.

    The first call starts at once, so that the caller can do other work before it waits.
    """

    def __init__(
        self,
        client: Client,
        header: MessageHeader,
        contents: Sequence[bytes],
        episodes: np.ndarray,
        is_repeat: bool = False,
        timeout: float | None = None,
    ):
        """Start the first call.

        With `is_repeat` it asks, without the content, whether an earlier call delivered the
        message. `timeout` is in seconds for each call; None: the client's.
        """
        self._client, self._timeout = client, timeout
        self._header, self._contents, self._episodes = header, contents, episodes
        self._call: PendingCall | None = self._start(content_omitted=is_repeat)
        self.answer = b""  # for a step of a group of environments: its actions, int32 [E] as bytes

    def wait(self) -> Reply:
        """Wait for the current call and return ACCEPTED, STALE, FOREIGN or RUNNING.

        RUNNING means that an earlier call has not ended. After that, and after Unreachable,
        another `wait` repeats the message, without the content unless the learner asks for it.
        Raises StreamLost if the learner lacks the stream's earlier messages, and Refused if it does
        not accept messages from this process.
        """
        while True:
            call, self._call = self._call or self._start(content_omitted=True), None
            numbers, answer = call.result()
            reply = self._client.read_reply(numbers)
            if reply == Reply.LOST:
                raise StreamLost
            if reply != Reply.INCOMPLETE:
                self.answer = answer.numpy()
                return reply
            self._call = self._start()

    def wait_until_done(self) -> None:
        """Wait until no call runs any more, whatever its result."""
        if self._call:
            self._call.wait()

    def _start(self, content_omitted: bool = False) -> "PendingCall":
        header, contents = self._header, self._contents
        if content_omitted:
            header, contents = header._replace(chunks=CONTENT_OMITTED), []
        elif sum(map(len, contents)) > MAX_CONTENT:
            header, contents = header._replace(chunks=self._send_chunks()), []
        # np.array, since TensorFlow would convert a tuple number by number. Few messages report
        # episodes; the others share one empty tensor.
        arguments = [
            tf.constant(np.array(header, np.int64)),
            tf.constant(contents, tf.string) if contents else self._client.no_content,
            tf.constant(self._episodes) if len(self._episodes) else self._client.no_episodes,
        ]
        return self._client.start(header.function, arguments, _BOTH, self._timeout)

    def _send_chunks(self) -> int:
        """Send the contents in chunks that fit into messages; return the number of chunks."""
        count, header = 0, tf.constant(list(self._header), tf.int64)
        for unroll, content in enumerate(self._contents):
            for index, offset in enumerate(range(0, len(content), MAX_CONTENT)):
                part = tf.constant(content[offset : offset + MAX_CONTENT])
                position = tf.constant([unroll, index], tf.int64)
                call = self._client.start("chunk", [header, position, part], _NUMBERS)
                [code] = call.result()
                if int(code) == Reply.INVALID:  # other replies come again, to the message itself
                    refuse_denied(Reply.INVALID)
                count += 1
        return count


def refuse_denied(reply: Reply) -> None:
    """Raise Refused if a reply says that the learner does not accept this process."""
    if reply == Reply.DENIED:
        raise Refused("the learner has a different token")
    if reply == Reply.DISPLACED:
        raise Refused(
            "another process is this actor now: give each its own --task (impala_horovod_gym began "
            "at 0 for each learner; here a number is used once in a run)"
        )
    if reply == Reply.INVALID:
        raise Refused("a message of this actor cannot be right: the learner's log says why")


_TEXT, _NUMBERS, _BOTH = [tf.string], [tf.int64], [tf.int64, tf.string]
# Messages of TensorFlow about a call that a learner ended: its queue of unrolls was closed, or its
# server refuses calls (`messages.RUN_ENDED`).
_ENDED = re.compile(
    rf"Enqueue operation was cancelled|FIFOQueue '\S+' is closed|{re.escape(RUN_ENDED)}"
)
_GRAPH_NODES = re.compile(r"\{\{[^}]*\}\}\s*")  # names of TensorFlow's graph nodes in a message


class PendingCall:
    """A call that was started; when it is freed, it frees TensorFlow's resource for the call."""

    def __init__(
        self, function: str, future: tf.Tensor, deleter: tf.Tensor, types: Sequence[tf.DType]
    ):
        self._function, self._types = function, types
        self._future, self._deleter = future, deleter

    def wait(self) -> tuple[int, str]:
        """Wait for the end of the call; return (0, ""), or TensorFlow's error code and message."""
        code, message = gen_rpc_ops.rpc_check_status(self._future)
        number = int(code)
        return number, message.numpy().decode(errors="replace") if number else ""

    def result(self) -> list[tf.Tensor]:
        """Wait for the call's answer and return it; raise Unreachable if the call fails."""
        code, message = self.wait()
        if code:
            if _ENDED.search(message):
                raise Unreachable("the learner has ended", ended=True)
            if code == tf.errors.UNAVAILABLE:  # its process has exited, or the network is down
                raise Unreachable("the connection to the learner has ended", late=True, ended=True)
            first = _GRAPH_NODES.sub("", message.split("\n")[0])
            late = code == tf.errors.DEADLINE_EXCEEDED
            # Without a local name for the exception, whose traceback would keep the call alive.
            raise Unreachable(f"{self._function}: {first or f'error {code}'}", late)
        return gen_rpc_ops.rpc_get_value(self._future, Tout=self._types)

    def __del__(self) -> None:
        if tf.executing_eagerly():
            gen_rpc_ops.delete_rpc_future_resource(handle=self._future, deleter=self._deleter)
        else:  # garbage collection while a graph is traced: keep this out of the graph
            with tf.init_scope():
                gen_rpc_ops.delete_rpc_future_resource(handle=self._future, deleter=self._deleter)
