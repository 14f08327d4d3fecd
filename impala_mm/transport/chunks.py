"""Messages too large for one call, put together from their pieces. `server` asks it."""

import threading
import time

_KEPT_SECONDS = 60.0  # pieces whose sender vanished
Message = tuple[int, int, int]  # actor, incarnation, sequence number


class ChunkStore:
    """What has come of each message: the parts of its unrolls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[Message, _MessageChunks] = {}

    def put(self, message: Message, unroll: int, index: int, content: bytes) -> None:
        """Keeps part `index` of the message's unroll number `unroll`."""
        now = time.monotonic()
        with self._lock:
            for old in [m for m, p in self._messages.items() if now - p.last > _KEPT_SECONDS]:
                del self._messages[old]
            parts = self._messages.setdefault(message, _MessageChunks())
            parts.last = now
            parts.content[unroll, index] = content

    def count(self, message: Message) -> int:
        """How many have come."""
        with self._lock:
            parts = self._messages.get(message)
            return len(parts.content) if parts else 0

    def take(self, message: Message) -> list[bytes]:
        """The message's unrolls, each whole; nothing of it is kept."""
        with self._lock:
            parts = self._messages.pop(message, None)
        unrolls: dict[int, list[bytes]] = {}
        for (unroll, _), content in sorted(parts.content.items() if parts else []):
            unrolls.setdefault(unroll, []).append(content)
        return [b"".join(contents) for contents in unrolls.values()]

    def __len__(self) -> int:
        return len(self._messages)


class _MessageChunks:
    """Of one message."""

    def __init__(self) -> None:
        self.content: dict[tuple[int, int], bytes] = {}
        self.last = time.monotonic()
