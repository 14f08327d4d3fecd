"""The functions that a learner offers its actors, as graphs; `client` calls them.

    hello           tells an actor who the learner is, or why it refuses the actor
    enqueue         puts a message's unrolls into the queue, once; waits while the queue is full
    chunk           stores a part of unrolls too large for one message, before their enqueue
    get_parameters  returns a part of the newest parameters
    infer           returns the next actions after a step, where the learner infers

Each checks the run's token first. What waits, waits in TensorFlow: a call that is held back by a
full queue holds no Python thread. A call that its caller gave up may still run, and so may its
repetition: every message has a key, and the ledger accepts each once.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.data.compression import decompress
from impala_mm.runtime.log import Say
from impala_mm.transport.chunks import ChunkStore
from impala_mm.transport.delivery import DeliveryLedger
from impala_mm.transport.messages import (
    NO_NONCE,
    NO_POLICY,
    STAY,
    InferenceRequest,
    ParametersReply,
    ParametersRequest,
    Reply,
    UnrollHeader,
    UnrollReply,
)


class LearnerCalls(Protocol):
    """The Python that the endpoints call: `server.Server` implements it."""

    def hello(self, request: bytes) -> np.ndarray:
        """Return who the learner is, or why it refuses the actor; as JSON."""

    def refuse_stranger(self) -> np.ndarray:
        """Return what a caller without the token is told; as JSON."""

    def read_parameters(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a ParametersReply to a ParametersRequest, and a part of the parameters."""

    def heard_from(self, actor: int) -> None:
        """Record that the actor is here."""

    def unrolls_arrived(self, header: UnrollHeader, episodes: np.ndarray) -> None:
        """Record what came with unrolls that are in the queue."""

    def where_next(self, header: UnrollHeader, reply: Reply) -> tuple[int, int]:
        """Return the newest policy version, and the learner that the actor is to feed next."""


class InferenceCalls(Protocol):
    """Inference at the learner, as its endpoint calls it."""

    def answer(
        self,
        header: tf.Tensor,
        content: tf.Tensor,
        episodes: tf.Tensor,
        queue: tf.queue.QueueBase,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (int64 [2]: a Reply and the version that acts; actions, int32 as bytes)."""


class UnrollReceiver:
    """Puts the unrolls of messages into the learner's queue, each once.

    Python has a message's headers twice: before its unrolls enter the queue, and after.
    """

    def __init__(
        self,
        calls: LearnerCalls,
        nonce: int,
        run: int,
        capacity: int,
        unroll_bytes: int | None,
        say: Say,
    ):
        """`nonce` and `run`: for which messages must be meant. `unroll_bytes`: the size of an
        unroll before compression; what cannot be one is dropped. None: take all as it comes.
        """
        self._calls, self.nonce, self.run = calls, nonce, run
        self._unroll_bytes, self._say = unroll_bytes, say
        # (an unroll's bytes, its policy version). The queue is TensorFlow's: its blocking enqueue
        # holds back actors that are faster than the learner, and no other call.
        self.queue = tf.queue.FIFOQueue(capacity, [tf.string, tf.int64], [[], []])
        self._ledger = DeliveryLedger()
        self.chunks = ChunkStore()
        self.stale = 0  # messages dropped: had before, or meant for another process
        self.dropped = 0  # unrolls that went nowhere

    def join(self, actor: int, incarnation: int) -> None:
        """Make this incarnation the actor; what others send in its name is dropped from now on."""
        self._ledger.join(actor, incarnation)

    def enqueue(self, header: tf.Tensor, sent: tf.Tensor, episodes: tf.Tensor) -> tf.Tensor:
        """Return, in a graph, an UnrollReply as int64.

        `header`: UnrollHeader as int64; `sent`: string [N], the unrolls as their actor sent them.
        """
        reply, contents, versions = tf.numpy_function(
            self._accept, [header, sent], [tf.int64, tf.string, tf.int64]
        )
        put = self.queue.enqueue_many(  # nothing, where the message is not accepted
            [tf.ensure_shape(contents, [None]), tf.ensure_shape(versions, [None])]
        )
        with tf.control_dependencies([put]):
            fill = self.queue.size()
        return _call_python(
            self._complete, [header, reply, episodes, fill], tf.int64, [len(UnrollReply._fields)]
        )

    def _accept(
        self, numbers: np.ndarray, sent: np.ndarray
    ) -> tuple[np.int64, np.ndarray, np.ndarray]:
        """Return a Reply, and the unrolls that enter the queue with their policy versions."""
        header = UnrollHeader(*map(int, numbers))
        reply = self._classify(header)
        contents = self._decode_unrolls(header, sent) if reply == Reply.ACCEPTED else []
        versions = np.full([len(contents)], header.version, np.int64)
        return np.int64(reply), np.array(contents, object), versions

    def _classify(self, header: UnrollHeader) -> Reply:
        """Return ACCEPTED where this call is to bring the message's unrolls into the queue."""
        if header.nonce != self.nonce or header.run != self.run:
            self.stale += 1
            return Reply.FOREIGN
        reply = self._ledger.try_accept(*header.message_key)
        if reply != Reply.DISPLACED:
            self._calls.heard_from(header.actor)
        if reply not in {Reply.ACCEPTED, Reply.RUNNING}:  # the call that runs may need them
            self.chunks.take(header.message_key)
        elif reply == Reply.ACCEPTED and header.chunks != self.chunks.count(header.message_key):
            self._ledger.complete(*header.message_key, done=False)  # sent without its content
            reply = Reply.LOST
        self.stale += reply == Reply.STALE
        return reply

    def _decode_unrolls(self, header: UnrollHeader, sent: np.ndarray) -> list[bytes]:
        """Return a message's unrolls as they were before their actor compressed or split them."""
        found = self.chunks.take(header.message_key) if header.chunks else list(sent)
        size = self._unroll_bytes
        if size is None:
            return found
        decoded = [content for each in found if (content := decompress(each, size)) is not None]
        if unreadable := len(found) - len(decoded):
            self.dropped += unreadable
            self._say(
                f"actor {header.actor} sent {unreadable} unrolls that are "
                f"neither {size} bytes long nor compressed from as many: dropped"
            )
        return decoded

    def _complete(
        self, numbers: np.ndarray, reply: np.int64, episodes: np.ndarray, fill: np.int32
    ) -> np.ndarray:
        """Return what the message's actor is told, now that its unrolls are in the queue."""
        header = UnrollHeader(*map(int, numbers))
        if reply == Reply.ACCEPTED:
            self._ledger.complete(*header.message_key)
            self.dropped += header.dropped
            self._calls.unrolls_arrived(header, episodes)
        version, learner = self._calls.where_next(header, Reply(int(reply)))
        return np.array(UnrollReply(int(reply), int(fill), version, learner))

    def store_chunk(self, numbers: np.ndarray, position: np.ndarray, content: bytes) -> np.int64:
        """Store part `position[1]` of the message's unroll number `position[0]`."""
        header = UnrollHeader(*map(int, numbers))
        if header.nonce != self.nonce:
            return np.int64(Reply.FOREIGN)
        self.chunks.put(header.message_key, int(position[0]), int(position[1]), bytes(content))
        return np.int64(Reply.ACCEPTED)


def make_endpoints(
    token: str, calls: LearnerCalls, receiver: UnrollReceiver, inference: InferenceCalls | None
) -> dict[str, Any]:
    """Return the functions that clients may call, by name."""
    text, numbers = (
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([len(UnrollHeader._fields)], tf.int64),
    )
    denied = tf.constant(Reply.DENIED, tf.int64)

    def registered(*arguments: tf.TensorSpec) -> Callable[[Any], Any]:
        # AutoGraph would leave a file in /tmp for each function of a process that is killed.
        return tf.function(input_signature=[text, *arguments], autograph=False)

    def if_known(given: tf.Tensor, answer: Any, otherwise: Any) -> Any:
        return tf.cond(tf.equal(given, token), answer, otherwise)

    @registered(text)
    def hello(given, request):
        return if_known(
            given,
            lambda: _call_python(calls.hello, [request], tf.string),
            lambda: _call_python(calls.refuse_stranger, [], tf.string),
        )

    @registered(numbers, tf.TensorSpec([None], tf.string), tf.TensorSpec([None, 3], tf.float32))
    def enqueue(given, header, sent, episodes):
        return if_known(
            given,
            lambda: receiver.enqueue(header, sent, episodes),
            lambda: tf.constant(UnrollReply(Reply.DENIED, 0, NO_POLICY, STAY), tf.int64),
        )

    @registered(numbers, tf.TensorSpec([2], tf.int64), text)
    def chunk(given, header, position, content):
        store = [header, position, content]
        return if_known(
            given, lambda: _call_python(receiver.store_chunk, store, tf.int64), lambda: denied
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

    offered = {
        "hello": hello,
        "enqueue": enqueue,
        "chunk": chunk,
        "get_parameters": get_parameters,
    }
    if inference:

        @registered(
            tf.TensorSpec([len(InferenceRequest._fields)], tf.int64),
            text,
            tf.TensorSpec([None, 3], tf.float32),
        )
        def infer(given, header, content, episodes):
            return if_known(
                given,
                lambda: inference.answer(header, content, episodes, receiver.queue),
                lambda: (tf.stack([denied, NO_POLICY]), tf.constant(b"")),
            )

        offered["infer"] = infer
    return offered


def _call_python(
    function: Callable[..., Any], inputs: list[tf.Tensor], dtype: tf.DType, shape: Any = ()
) -> tf.Tensor:
    """Return what a Python function answers, as a tensor of known shape."""
    return tf.ensure_shape(tf.numpy_function(function, inputs, dtype), shape)
