"""The learner's side of delivery: each message of an actor counts exactly once.

A call that timed out at the actor may still be running, and calls may overtake each other. The
ledger decides by a message's header whether to accept it, both for unrolls (`endpoints`) and for
steps of a group of environments (`inference`); `client.Delivery` is the actor's side.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from impala_mm.transport.messages import (
    CONNECTION_BITS,
    CONTENT_OMITTED,
    UNROLLS,
    MessageHeader,
    Reply,
)


class DeliveryRecords(Protocol):
    """The functions that the ledger calls; `server.Server` implements them."""

    def heard_from(self, actor: int) -> None:
        """Record that a message of the actor arrived."""

    def delivered(self, header: MessageHeader, episodes: np.ndarray) -> None:
        """Record what a message reported, now that it is delivered."""


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
        records: DeliveryRecords,
        is_invalid: Callable[[MessageHeader], bool] = lambda header: False,
    ):
        """Accept messages that name this learner process and this run, and are not invalid."""
        self.nonce, self.run, self._records, self._is_invalid = nonce, run, records, is_invalid
        self._lock = threading.Lock()
        self._incarnations: dict[int, int] = {}  # by actor
        self._streams: dict[tuple[int, int, int], _Stream] = {}  # by MessageHeader.stream_key
        self.stale = 0  # messages that were not accepted: delivered before, or foreign

    def join(self, actor: int, incarnation: int) -> bool:
        """Accept the actor's messages from this incarnation alone; return whether it is a new one.

        A late hello from an earlier connection of the same process changes nothing.
        """
        with self._lock:
            known = self._incarnations.get(actor)
            if (
                known is not None
                and known >> CONNECTION_BITS == incarnation >> CONNECTION_BITS
                and known >= incarnation
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
            self._records.heard_from(header.actor)
        return reply, answer

    def complete(self, header: MessageHeader, episodes: np.ndarray, answer: bytes = b"") -> None:
        """Record that an accepted message is delivered, and keep its answer for repeats."""
        with self._lock:
            if stream := self._end_running(header):
                stream.answer = answer
        self._records.delivered(header, episodes)

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
        self.missing = {each for each in self.missing if each >= oldest and each != number}
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
        self._messages: dict[Message, _MessageChunks] = {}

    def put(self, message: Message, unroll: int, index: int, content: bytes) -> None:
        """Store chunk `index` of the message's unroll number `unroll`."""
        now = time.monotonic()
        with self._lock:
            for old in [m for m, c in self._messages.items() if now - c.last > _KEPT_SECONDS]:
                del self._messages[old]
            if message not in self._messages:
                of_actor = [other for other in self._messages if other[0] == message[0]]
                for oldest in of_actor[: 1 - _MOST_MESSAGES]:
                    del self._messages[oldest]
            chunks = self._messages.setdefault(message, _MessageChunks())
            chunks.last = now
            chunks.content[unroll, index] = content

    def count(self, message: Message) -> int:
        """Return how many chunks of a message have arrived."""
        with self._lock:
            chunks = self._messages.get(message)
            return len(chunks.content) if chunks else 0

    def take(self, message: Message) -> list[bytes]:
        """Return the message's unrolls, joined from their chunks, and forget the message."""
        with self._lock:
            chunks = self._messages.pop(message, None)
        unrolls: dict[int, list[bytes]] = {}
        for (unroll, _), content in sorted(chunks.content.items() if chunks else []):
            unrolls.setdefault(unroll, []).append(content)
        return [b"".join(contents) for contents in unrolls.values()]

    def __len__(self) -> int:
        return len(self._messages)


class _MessageChunks:
    """The chunks of one message."""

    def __init__(self) -> None:
        self.content: dict[tuple[int, int], bytes] = {}
        self.last = time.monotonic()
