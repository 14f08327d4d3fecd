"""The learner's side of delivery: each message of an actor counts exactly once.

A call that timed out at the actor may still be running, and calls may overtake each other. The
ledger decides by a message's header whether to accept it, both for unrolls (`UnrollReceiver`) and
for steps of a group of environments (`inference`); `client.Delivery` is the actor's side.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.compression import decompress
from impala_mm.runtime.log import Say
from impala_mm.transport.connected_actors import ConnectedActors
from impala_mm.transport.messages import (
    CONNECTION_BITS,
    CONTENT_OMITTED,
    MAX_CONTENT,
    MAX_ENVIRONMENTS,
    UNROLLS,
    MessageHeader,
    MessageReply,
    Reply,
)
from impala_mm.transport.rounds import Rounds


class DeliveryLedger:
    """The messages that one learner process has received.

    Unrolls may overtake each other: each of a stream's last WINDOW numbers is accepted once. The
    steps of a group of environments are accepted in order.
    """

    WINDOW = 1000

    def __init__(
        self,
        nonce: int,
        run: int,
        actors: ConnectedActors,
        is_invalid: Callable[[MessageHeader], bool] = lambda header: False,
    ):
        """Accept messages that name this learner process and this run, and are not invalid.

        `actors` gets what they report.
        """
        self.nonce, self.run, self._actors, self._is_invalid = nonce, run, actors, is_invalid
        self._lock = threading.Lock()
        self._incarnations: dict[int, int] = {}  # by actor
        self._streams: dict[tuple[int, int, int], _Stream] = {}  # by MessageHeader.stream_key
        self.stale = 0  # messages that were not accepted: delivered before, or foreign

    def join(self, actor: int, incarnation: int) -> bool:
        """Accept the actor's messages from this incarnation alone; return whether it is a new one.

        A late hello from an earlier connection of the same process changes nothing.
        """
        with self._lock:
            newest = self._incarnations.get(actor)
            if (
                newest is not None
                and newest >> CONNECTION_BITS == incarnation >> CONNECTION_BITS
                and newest >= incarnation
            ):
                return False
            self._incarnations[actor] = incarnation
            self._streams = {key: s for key, s in self._streams.items() if key[0] != actor}
            return True

    def forget(self, stream_key: tuple[int, int, int]) -> None:
        """Forget a stream, which must then start over with message number 0."""
        with self._lock:
            self._streams.pop(stream_key, None)

    def refusal(self, header: MessageHeader) -> Reply | None:
        """Return FOREIGN or DISPLACED if nonce, run or incarnation is not current.

        Return INVALID if another number cannot be right, and otherwise None.
        """
        if header.nonce != self.nonce or header.run != self.run:
            return Reply.FOREIGN
        if self._incarnations.get(header.actor) != header.incarnation:
            return Reply.DISPLACED
        return Reply.INVALID if self._is_invalid(header) else None

    def try_accept(self, header: MessageHeader) -> tuple[Reply, bytes]:
        """Return the reply to a call, and the answer if the stream's last message is repeated.

        After ACCEPTED the caller must call `complete` or `fail` for this message.
        """
        with self._lock:
            refused = self.refusal(header)
            if refused is None:
                stream = self._streams.get(header.stream_key)
                if stream is None:
                    stream = _Stream(in_order=header.stream != UNROLLS)
                    self._streams[header.stream_key] = stream
                reply, answer = stream.try_accept(header.number, header.chunks == CONTENT_OMITTED)
            else:
                reply, answer = refused, b""
            self.stale += reply in {Reply.STALE, Reply.FOREIGN}
        if refused is None:
            self._actors.heard_from(header.actor)
        return reply, answer

    def complete(self, header: MessageHeader, episodes: np.ndarray, answer: bytes = b"") -> None:
        """Record that an accepted message is delivered, and keep its answer for repeats."""
        with self._lock:
            if stream := self._end_running(header):
                stream.answer = answer
        self._actors.delivered(header, episodes)

    def fail(self, header: MessageHeader) -> None:
        """Record that an accepted message was not delivered: it will be accepted once more."""
        with self._lock:
            if stream := self._end_running(header):
                stream.missing.add(header.number)

    def _end_running(self, header: MessageHeader) -> "_Stream | None":
        """Remove a message from its stream's running ones; return the stream, None if forgotten."""
        stream = self._streams.get(header.stream_key)
        if stream is None or header.number not in stream.running:
            return None
        stream.running.remove(header.number)
        return stream


class _Stream:
    """One stream: all numbers below `following` were accepted, except those in `missing`."""

    def __init__(self, in_order: bool):
        self._in_order = in_order
        self.following = 0
        self.missing: set[int] = set()
        self.running: set[int] = set()  # accepted, not yet delivered
        self.answer = b""  # the answer to the message that was delivered last

    def try_accept(self, number: int, content_omitted: bool) -> tuple[Reply, bytes]:
        if number in self.running:
            return Reply.RUNNING, b""
        oldest = max(self.following, number + 1) - DeliveryLedger.WINDOW
        if number < self.following and number not in self.missing:
            return Reply.STALE, self.answer if number == self.following - 1 else b""
        if self._in_order and number > min(self.running | self.missing, default=self.following):
            return Reply.LOST, b""
        if content_omitted:
            return Reply.INCOMPLETE, b""
        self.missing.update(range(max(self.following, oldest), number))
        self.missing = {n for n in self.missing if n >= oldest and n != number}
        self.following = max(self.following, number + 1)
        self.running.add(number)
        return Reply.ACCEPTED, b""


_KEPT_SECONDS = 60.0  # seconds after which the chunks of an unfinished message are deleted
_MOST_MESSAGES = 4  # unfinished ones of an actor; it sends one at a time, but a call may be late
Message = tuple[int, int, int, int]  # a MessageHeader.message_key


class ChunkStore:
    """The chunks that have arrived so far, by message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The time of the last chunk of a message, and all of its chunks by (unroll, index).
        self._messages: dict[Message, tuple[float, dict[tuple[int, int], bytes]]] = {}

    def put(self, message: Message, unroll: int, index: int, content: bytes) -> None:
        """Store chunk `index` of the message's unroll number `unroll`."""
        now = time.monotonic()
        with self._lock:
            for old in [m for m, (at, _) in self._messages.items() if now - at > _KEPT_SECONDS]:
                del self._messages[old]
            if message not in self._messages:
                of_actor = [other for other in self._messages if other[0] == message[0]]
                for oldest in of_actor[: 1 - _MOST_MESSAGES]:
                    del self._messages[oldest]
            _, chunks = self._messages.get(message, (now, {}))
            chunks[unroll, index] = content
            self._messages[message] = now, chunks

    def count(self, message: Message) -> int:
        """Return how many chunks of a message have arrived."""
        with self._lock:
            return len(self._messages.get(message, (0.0, ()))[1])

    def take(self, message: Message) -> list[bytes]:
        """Return the message's unrolls, joined from their chunks, and forget the message."""
        with self._lock:
            _, chunks = self._messages.pop(message, (0.0, {}))
        unrolls: dict[int, list[bytes]] = {}
        for (unroll, _), content in sorted(chunks.items()):
            unrolls.setdefault(unroll, []).append(content)
        return [b"".join(contents) for contents in unrolls.values()]


class UnrollReceiver:
    """The receiver of messages with unrolls: puts each unroll into the learner's queue once.

    It handles a message's header twice in Python: before its unrolls enter the queue, and after.
    """

    def __init__(
        self,
        ledger: DeliveryLedger,
        queue: tf.queue.QueueBase,
        rounds: Rounds | None,
        unroll_bytes: int | None,
        find_mistake: Callable[[bytes], str],
        make_reply: Callable[[MessageHeader, Reply], MessageReply],
        say: Say,
    ):
        """Receive unrolls for `queue`, with `rounds` those that a round has room for.

        `unroll_bytes` is the size of an unroll before compression: content that cannot be an unroll
        is dropped, as is one in which `find_mistake` finds any. None: all content is accepted
        unchanged.
        """
        self._ledger, self._queue, self._rounds = ledger, queue, rounds
        self._unroll_bytes, self._find_mistake = unroll_bytes, find_mistake
        self._make_reply, self._say = make_reply, say
        self.chunks = ChunkStore()
        self.unreadable = 0  # unrolls that were dropped
        self.mistakes = dict[int, str]()  # by actor: what is wrong in its first invalid unroll
        self.has_received = False  # whether an unroll was received

    def enqueue(
        self, header: tf.Tensor, sent: tf.Tensor, episodes: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Take a message with unrolls, as the actor sent them; see `server.TakeMessage`."""
        reply, contents, versions = tf.numpy_function(
            self._accept, [header, sent], [tf.int64, tf.string, tf.int64]
        )
        put = self._queue.enqueue_many(  # nothing, if the message is not accepted
            [tf.ensure_shape(contents, [None]), tf.ensure_shape(versions, [None])]
        )
        with tf.control_dependencies([put]):
            numbers = call_python(
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
            if self._rounds:
                return self._rounds.take(header.actor, header.version, contents)
            return contents
        except BaseException:
            self._ledger.fail(header)  # otherwise repeats of this call would wait for it for ever
            raise

    def _decode_unrolls(self, header: MessageHeader, sent: np.ndarray) -> list[bytes]:
        """Return a message's unrolls as they were before the actor compressed or split them."""
        packed = self.chunks.take(header.message_key) if header.chunks else list(sent)
        size = self._unroll_bytes
        if size is None:
            return packed
        decoded = [content for part in packed if (content := decompress(part, size)) is not None]
        if unreadable := len(packed) - len(decoded):
            self.unreadable += unreadable
            self._say(
                f"actor {header.actor}: dropped {unreadable} unrolls that are neither {size} bytes "
                f"long nor compressed from {size} bytes"
            )
        return self.select_valid(header.actor, decoded)

    def select_valid(self, actor: int, unrolls: list[bytes]) -> list[bytes]:
        """Return those of an actor's unrolls in which no mistake is found; count the others."""
        mistakes = [self._find_mistake(unroll) for unroll in unrolls]
        if told := list(filter(None, mistakes)):
            self.unreadable += len(told)
            if actor not in self.mistakes:
                self.mistakes[actor] = told[0]
                self._say(
                    f"actor {actor}: dropped {len(told)} unrolls: in one, {told[0]}; "
                    f"further ones of this actor are counted as unrolls_dropped"
                )
        return [unroll for unroll, wrong in zip(unrolls, mistakes, strict=True) if not wrong]

    def _complete(self, numbers: np.ndarray, reply: np.int64, episodes: np.ndarray) -> np.ndarray:
        """Return the reply to a message, now that its unrolls are in the queue."""
        header = MessageHeader.decode(numbers)
        if reply == Reply.ACCEPTED:
            self._ledger.complete(header, episodes)
        return np.array(self._make_reply(header, Reply(int(reply))))

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


def call_python(
    function: Callable[..., Any], inputs: list[tf.Tensor], dtype: tf.DType, shape: Any = ()
) -> tf.Tensor:
    """Return the result of a Python function as a tensor of known shape, in a graph."""
    return tf.ensure_shape(tf.numpy_function(function, inputs, dtype), shape)
