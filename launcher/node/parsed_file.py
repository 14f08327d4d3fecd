"""A JSON file that is read far more often than it is replaced; `run_registry` reads a run's files.

A frontend asks for the record and the states with each report of each host.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from launcher.node.task import parse_object

# Seconds for which a new file is parsed each time: within a tick of the file system's clock,
# another one may take its place with the same inode, time and size.
_NEW_SECONDS = 0.1
Parsed = TypeVar("Parsed")


class ParsedFile(Generic[Parsed]):
    """A JSON file that is parsed once for each content; threads may share it."""

    def __init__(self, path: Path, parse: Callable[[dict[str, Any]], Parsed]):
        """Represent the file; `parse` gets its object, or an empty one if it has none."""
        self._path, self._parse = path, parse
        self._known: tuple[tuple[int, int, int], Parsed] | None = None
        self._reading = threading.Lock()  # so that of many threads only one parses a new content

    def read(self) -> Parsed:
        """Return what `parse` returns; it is shared by all callers, who must not change it."""
        with self._reading:
            try:
                # Opened, since a network file system may answer `stat` from its cache.
                with self._path.open("rb", buffering=0) as file:
                    about = os.fstat(file.fileno())
                    version = about.st_ino, about.st_mtime_ns, about.st_size
                    if self._known and self._known[0] == version:
                        return self._known[1]
                    content = file.read()
            except OSError:
                content, version = b"", (0, 0, 0)
            parsed = self._parse(parse_object(content))
            is_new = time.time() - version[1] / 1e9 < _NEW_SECONDS
            # Damaged content is read again: it may be repaired in place.
            self._known = (version, parsed) if parsed and not is_new else None
            return parsed
