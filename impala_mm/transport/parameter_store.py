"""The parameters as actors read them: whole, though they travel in parts and change meanwhile.

The server publishes every version here and answers `get_parameters` from it.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_KEPT_SECONDS = 60.0  # a version whose reader does not come back


class ParameterPart(NamedTuple):
    """A part of one version of the parameters."""

    version: int
    total: int  # bytes of the whole version
    content: bytes


class ParameterStore:
    """The newest version, and older ones for as long as somebody is in the middle of them."""

    def __init__(self, part_bytes: int):
        """`part_bytes`: the size of each part that is read."""
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        self._versions: dict[int, _PackedParameters] = {}
        self._readers: dict[int, tuple[int, float]] = {}  # which version each reads, since when
        self.version: int | None = None  # the newest; None before the first

    def publish(self, version: int, pack: Callable[[], bytes]) -> None:
        """Make what `pack` returns the newest version; it is called when somebody reads it."""
        oldest = time.monotonic() - _KEPT_SECONDS
        with self._lock:
            self._readers = {r: held for r, held in self._readers.items() if held[1] > oldest}
            wanted = {held_version for held_version, _ in self._readers.values()}
            self._versions = {v: s for v, s in self._versions.items() if v in wanted}
            self._versions[version] = _PackedParameters(pack)
            self.version = version

    def read(self, version: int | None, offset: int, reader: int) -> ParameterPart | None:
        """Return the part of a version (None: the newest) from byte `offset` on.

        None where there is no such version, or none yet.
        """
        with self._lock:
            version = self.version if version is None else version
            found = self._versions.get(version) if version is not None else None
            if version is None or found is None:
                return None
            self._readers[reader] = version, time.monotonic()
        content = found.pack()  # may take long, and others publish meanwhile
        end = offset + self._part_bytes
        if end >= len(content):
            with self._lock:
                self._readers.pop(reader, None)
        return ParameterPart(version, len(content), content[offset:end])

    def __len__(self) -> int:
        return len(self._versions)


class _PackedParameters:
    """One version's bytes, packed for the first who reads them; others wait meanwhile."""

    def __init__(self, pack: Callable[[], bytes]):
        self._pack: Callable[[], bytes] | None = pack
        self._lock, self._bytes = threading.Lock(), b""

    def pack(self) -> bytes:
        with self._lock:
            if self._pack:
                self._bytes, self._pack = self._pack(), None
            return self._bytes
