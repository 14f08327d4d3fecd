"""The parameters that actors download: each version stays complete while its parts are read.

The server publishes every version here and answers `get_parameters` from it.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_KEPT_SECONDS = 60.0  # seconds for which a version is kept for a reader that has stopped reading
_MOST_VERSIONS, _MOST_READERS = 100, 10_000  # of which the oldest are forgotten


class ParameterPart(NamedTuple):
    """A part of one version of the parameters."""

    version: int
    total: int  # bytes of the complete version
    content: bytes


class ParameterStore:
    """The newest version, and older ones while actors are still reading them."""

    def __init__(self, part_bytes: int):
        """Serve parts of `part_bytes` bytes."""
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        self._versions: dict[int, _PackedParameters] = {}
        # By reader: the version that it reads, and the time of the last part.
        self._readers: dict[int, tuple[int, float]] = {}
        self.version: int | None = None  # the newest; None before the first

    def publish(self, version: int, pack: Callable[[], bytes]) -> None:
        """Make the bytes that `pack` returns the newest version; the first read calls it."""
        oldest = time.monotonic() - _KEPT_SECONDS
        with self._lock:
            self._readers = {r: held for r, held in self._readers.items() if held[1] > oldest}
            held = {held_version for held_version, _ in self._readers.values()}
            wanted = sorted(held)[-_MOST_VERSIONS:]
            self._versions = {v: s for v, s in self._versions.items() if v in wanted}
            self._versions[version] = _PackedParameters(pack)
            self.version = version

    def read(self, version: int | None, offset: int, reader: int) -> ParameterPart | None:
        """Return the part of a version (None: the newest) that begins at byte `offset`.

        Return None if the store does not have this version, or has none yet.
        """
        with self._lock:
            version = self.version if version is None else version
            packed = self._versions.get(version) if version is not None else None
            if version is None or packed is None or offset < 0:
                return None
            self._readers.pop(reader, None)  # so that the one that read last is last
            self._readers[reader] = version, time.monotonic()
            if len(self._readers) > _MOST_READERS:
                del self._readers[next(iter(self._readers))]
        content = packed.pack()  # may take long, so without the lock
        end = offset + self._part_bytes
        if end >= len(content):
            with self._lock:
                self._readers.pop(reader, None)
        return ParameterPart(version, len(content), content[offset:end])


class _PackedParameters:
    """One version's bytes, packed by the first read; concurrent reads wait for it."""

    def __init__(self, pack: Callable[[], bytes]):
        self._pack: Callable[[], bytes] | None = pack
        self._lock, self._bytes = threading.Lock(), b""

    def pack(self) -> bytes:
        with self._lock:
            if self._pack:
                self._bytes, self._pack = self._pack(), None
            return self._bytes
