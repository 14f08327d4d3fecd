"""The functions that a learner offers its actors, as graphs; `client` calls them.

    hello           introduces an actor; returns the learner's identity, or why it refuses the actor
    enqueue         puts a message's unrolls into the queue, once; waits while the queue is full
                    (for algorithms with rounds: and claims columns for the actor's next ones)
    infer           takes a step and returns the next actions (with --inference=learner)
    chunk           stores a part of unrolls that are too large for one message, before `enqueue`
    claim           claims columns of the learner's round (for algorithms with rounds)
    get_parameters  returns a part of the newest parameters

Each function checks the run's token first. A call that a full queue holds back waits within
TensorFlow and occupies no Python thread. A call that timed out at the actor may still be running
when the actor repeats it: the ledger (`delivery`) accepts each message once.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.data.compression import decompress
from impala_mm.runtime.log import Say
from impala_mm.transport.delivery import ChunkStore, DeliveryLedger
from impala_mm.transport.messages import (
    MAX_CONTENT,
    MAX_ENVIRONMENTS,
    NO_NONCE,
    NO_POLICY,
    MessageHeader,
    MessageReply,
    ParametersReply,
    ParametersRequest,
    Reply,
)


class LearnerCalls(Protocol):
    """The Python functions that the endpoints call; `server.Server` implements them."""

    def hello(self, request: bytes) -> np.ndarray:
        """Return the learner's identity, or why it refuses the actor; as JSON."""

    def refuse_stranger(self) -> np.ndarray:
        """Return the answer to a caller without the token; as JSON."""

    def read_parameters(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a ParametersReply to a ParametersRequest, and a part of the parameters."""

    def make_reply(self, header: MessageHeader, reply: Reply) -> MessageReply:
        """Return the reply to a message with unrolls, with the learner to feed next."""

    def select_unrolls(self, header: MessageHeader, unrolls: list[bytes]) -> list[bytes]:
        """Return those of a message's unrolls that enter the queue now."""

    def claim_columns(self, numbers: np.ndarray) -> np.ndarray:
        """Return the reply to a claim of a round's columns, which is a header without content."""


# A function for graphs that takes a message: a MessageHeader as int64, contents as strings [N], and
# episodes that ended, float32 [K, 3]. It returns a MessageReply as int64, and an answer as bytes.
TakeMessage = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class UnrollReceiver:
    """The receiver of messages with unrolls: puts each unroll into the learner's queue once.

    It handles a message's header twice in Python: before its unrolls enter the queue, and after.
    """

    def __init__(
        self,
        calls: LearnerCalls,
        ledger: DeliveryLedger,
        queue: tf.queue.QueueBase,
        unroll_bytes: int | None,
        find_mistake: Callable[[bytes], str],
        say: Say,
    ):
        """Receive unrolls for `queue`.

        `unroll_bytes` is the size of an unroll before compression: content that cannot be an unroll
        is dropped, as is one in which `find_mistake` finds any. None: all content is accepted
        unchanged.
        """
        self._calls, self._ledger, self._queue = calls, ledger, queue
        self._unroll_bytes, self._find_mistake, self._say = unroll_bytes, find_mistake, say
        self.chunks = ChunkStore()
        self.unreadable = 0  # unrolls that were dropped
        self.mistakes = dict[int, str]()  # by actor: what is wrong in its first invalid unroll
        self.has_received = False  # whether an unroll was received

    def enqueue(
        self, header: tf.Tensor, sent: tf.Tensor, episodes: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Take a message with unrolls, as the actor sent them; see `TakeMessage`."""
        reply, contents, versions = tf.numpy_function(
            self._accept, [header, sent], [tf.int64, tf.string, tf.int64]
        )
        put = self._queue.enqueue_many(  # nothing, if the message is not accepted
            [tf.ensure_shape(contents, [None]), tf.ensure_shape(versions, [None])]
        )
        with tf.control_dependencies([put]):
            numbers = _call_python(
                self._complete, [header, reply, episodes], tf.int64, [len(MessageReply._fields)]
            )
        return numbers, tf.constant(b"")

    def _accept(
        self, numbers: np.ndarray, sent: np.ndarray
    ) -> tuple[np.int64, np.ndarray, np.ndarray]:
        """Return a Reply, and the unrolls that enter the queue with their policy versions."""
        header = MessageHeader.decode(numbers)
        reply, _ = self._ledger.try_accept(header)
        if reply == Reply.ACCEPTED and header.chunks != self.chunks.count(header.message_key):
            self._ledger.fail(header)
            reply = Reply.INCOMPLETE
        contents = self._read_unrolls(header, sent) if reply == Reply.ACCEPTED else []
        if reply not in {Reply.RUNNING, Reply.INCOMPLETE}:  # these still need the chunks
            self.chunks.take(header.message_key)
        versions = np.full([len(contents)], header.version, np.int64)
        return np.int64(reply), np.array(contents, object), versions

    def _read_unrolls(self, header: MessageHeader, sent: np.ndarray) -> list[bytes]:
        """Return those of an accepted message's unrolls that enter the queue."""
        try:
            contents = self._decode_unrolls(header, sent)
            self.has_received |= bool(contents)
            return self._calls.select_unrolls(header, contents)
        except BaseException:
            self._ledger.fail(header)  # otherwise repeats of this call would wait for it for ever
            raise

    def _decode_unrolls(self, header: MessageHeader, sent: np.ndarray) -> list[bytes]:
        """Return a message's unrolls as they were before the actor compressed or split them."""
        found = self.chunks.take(header.message_key) if header.chunks else list(sent)
        size = self._unroll_bytes
        if size is None:
            return found
        decoded = [content for each in found if (content := decompress(each, size)) is not None]
        if unreadable := len(found) - len(decoded):
            self.unreadable += unreadable
            self._say(
                f"actor {header.actor}: dropped {unreadable} unrolls that are neither {size} bytes "
                f"long nor compressed from {size} bytes"
            )
        return self.select_valid(header.actor, decoded)

    def select_valid(self, actor: int, unrolls: list[bytes]) -> list[bytes]:
        """Return those of an actor's unrolls in which no mistake is found; count the others."""
        mistakes = [self._find_mistake(unroll) for unroll in unrolls]
        if wrong := list(filter(None, mistakes)):
            self.unreadable += len(wrong)
            if actor not in self.mistakes:
                self.mistakes[actor] = wrong[0]
                self._say(
                    f"actor {actor}: dropped {len(wrong)} unrolls: in one, {wrong[0]}; "
                    f"further ones of this actor are counted as unrolls_dropped"
                )
        return [each for each, mistake in zip(unrolls, mistakes, strict=True) if not mistake]

    def _complete(self, numbers: np.ndarray, reply: np.int64, episodes: np.ndarray) -> np.ndarray:
        """Return the reply to a message, now that its unrolls are in the queue."""
        header = MessageHeader.decode(numbers)
        if reply == Reply.ACCEPTED:
            self._ledger.complete(header, episodes)
        return np.array(self._calls.make_reply(header, Reply(int(reply))))

    def store_chunk(self, numbers: np.ndarray, position: np.ndarray, content: bytes) -> np.int64:
        """Store part `position[1]` of the message's unroll number `position[0]`."""
        header = MessageHeader.decode(numbers)
        refused = self._ledger.refusal(header)
        unroll, index = int(position[0]), int(position[1])
        if refused is None and not self._is_possible(unroll, index, len(content)):
            refused = Reply.INVALID
        if refused is None:
            self.chunks.put(header.message_key, unroll, index, bytes(content))
        return np.int64(refused or Reply.ACCEPTED)

    def _is_possible(self, unroll: int, index: int, length: int) -> bool:
        """Return whether a chunk can be one of a message's unrolls."""
        size = self._unroll_bytes
        return (
            0 <= unroll < MAX_ENVIRONMENTS
            and index >= 0
            and length <= MAX_CONTENT
            and (size is None or index * MAX_CONTENT < size)
        )


def make_endpoints(
    token: str,
    calls: LearnerCalls,
    receiver: UnrollReceiver,
    infer: TakeMessage | None,
    in_rounds: bool,
) -> dict[str, Any]:
    """Return the functions that clients may call, by name: those that this learner needs."""
    text, numbers = (
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([len(MessageHeader._fields)], tf.int64),
    )
    episodes = tf.TensorSpec([None, 3], tf.float32)
    denied = tf.constant(MessageReply(Reply.DENIED), tf.int64)

    def registered(*arguments: tf.TensorSpec) -> Callable[[Any], Any]:
        specs = [text, *arguments]

        def register(function: Callable[..., Any]) -> Any:
            def call(*given: tf.Tensor) -> Any:
                # TensorFlow's RPC compares the types with the signature, but not the shapes.
                return function(
                    *(tf.ensure_shape(x, s.shape) for x, s in zip(given, specs, strict=True))
                )

            # AutoGraph would leave a file in /tmp for each function of a process that is killed.
            return tf.function(call, input_signature=specs, autograph=False)

        return register

    def if_known(given: tf.Tensor, answer: Any, otherwise: Any) -> Any:
        return tf.cond(tf.equal(given, token), answer, otherwise)

    @registered(text)
    def hello(given, request):
        return if_known(
            given,
            lambda: _call_python(calls.hello, [request], tf.string),
            lambda: _call_python(calls.refuse_stranger, [], tf.string),
        )

    def make_message_endpoint(take: TakeMessage) -> Any:
        @registered(numbers, tf.TensorSpec([None], tf.string), episodes)
        def message(given, header, contents, ended):
            return if_known(
                given,
                lambda: take(header, contents, ended),
                lambda: (denied, tf.constant(b"")),
            )

        return message

    @registered(numbers, tf.TensorSpec([2], tf.int64), text)
    def chunk(given, header, position, content):
        store = [header, position, content]
        return if_known(
            given,
            lambda: _call_python(receiver.store_chunk, store, tf.int64),
            lambda: tf.constant(Reply.DENIED, tf.int64),
        )

    @registered(numbers)
    def claim(given, header):
        fields = [len(MessageReply._fields)]
        return if_known(
            given,
            lambda: _call_python(calls.claim_columns, [header], tf.int64, fields),
            lambda: denied,
        )

    @registered(tf.TensorSpec([len(ParametersRequest._fields)], tf.int64))
    def get_parameters(given, request):
        def answer():
            reply, content = tf.numpy_function(
                calls.read_parameters, [request], [tf.int64, tf.string]
            )
            shape = [len(ParametersReply._fields)]
            return tf.ensure_shape(reply, shape), tf.ensure_shape(content, [])

        refusal = ParametersReply(NO_POLICY, 0, NO_NONCE)
        nothing = tf.constant(refusal, tf.int64), tf.constant(b"")
        return if_known(given, answer, lambda: nothing)

    offered = {"hello": hello, "get_parameters": get_parameters}
    if infer:
        return offered | {"infer": make_message_endpoint(infer)}
    offered |= {"enqueue": make_message_endpoint(receiver.enqueue), "chunk": chunk}
    return offered | ({"claim": claim} if in_rounds else {})


def _call_python(
    function: Callable[..., Any], inputs: list[tf.Tensor], dtype: tf.DType, shape: Any = ()
) -> tf.Tensor:
    """Return the result of a Python function as a tensor of known shape, in a graph."""
    return tf.ensure_shape(tf.numpy_function(function, inputs, dtype), shape)
