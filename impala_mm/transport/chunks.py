"""Messages too large for one call, joined from their chunks; `endpoints` stores them here."""

import threading
import time

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
