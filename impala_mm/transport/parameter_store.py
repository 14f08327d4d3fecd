"""The parameters as actors read them: whole, though they travel in pieces and change meanwhile.

`server` publishes every version here and answers `get_parameters` from it.
"""

import threading
import time
from collections.abc import Callable

_KEPT_SECONDS = 60.0  # a version that nobody goes on reading


class ParameterStore:
    """The newest version, and older ones for as long as somebody is in the middle of them."""

    def __init__(self, piece: int):
        self._piece = piece  # bytes of each answer
        self._lock = threading.Lock()
        self._vectors: dict[int, _PackedParameters] = {}
        self._readers: dict[int, tuple[int, float]] = {}  # which version each reads, since when
        self.version = -1  # the newest; -1 before the first

    def publish(self, version: int, pack: Callable[[], bytes]) -> None:
        """Makes what `pack` gives the newest; it is asked when somebody reads it."""
        oldest = time.monotonic() - _KEPT_SECONDS
        with self._lock:
            self._readers = {r: held for r, held in self._readers.items() if held[1] > oldest}
            wanted = {held_version for held_version, _ in self._readers.values()}
            self._vectors = {v: s for v, s in self._vectors.items() if v in wanted}
            self._vectors[version] = _PackedParameters(pack)
            self.version = version

    def read(self, version: int, offset: int, reader: int) -> tuple[int, int, bytes]:
        """(version, bytes in all, a piece from `offset` on) of a version, or of the newest (-1).

        (-1, 0, nothing) where there is no such version, or none yet.
        """
        with self._lock:
            version = self.version if version < 0 else version
            found = self._vectors.get(version)
            if found is None:
                return -1, 0, b""
            self._readers[reader] = version, time.monotonic()
        vector = found.whole()  # may take long, and others publish meanwhile
        end = offset + self._piece
        if end >= len(vector):
            with self._lock:
                self._readers.pop(reader, None)
        return version, len(vector), vector[offset:end]

    def __len__(self) -> int:
        return len(self._vectors)


class _PackedParameters:
    """One version's bytes, made for the first who reads them; those who come meanwhile wait."""

    def __init__(self, pack: Callable[[], bytes]):
        self._pack: Callable[[], bytes] | None = pack
        self._lock, self._bytes = threading.Lock(), b""

    def whole(self) -> bytes:
        with self._lock:
            if self._pack:
                self._bytes, self._pack = self._pack(), None
            return self._bytes
