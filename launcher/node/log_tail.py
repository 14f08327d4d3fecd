"""Follows a log file line by line: for a frontend's terminal, and for the window of a process."""

import contextlib
import math
import os
from pathlib import Path
from typing import BinaryIO


class LogTail:
    """The lines that are appended to a log file, also after the log was rotated."""

    def __init__(self, path: Path, max_bytes: float = math.inf):
        """Begin at most `max_bytes` before the log's present end."""
        self._path, self._partial_line = path, b""
        self._file = self._open()
        if self._file and (skipped := os.fstat(self._file.fileno()).st_size - max_bytes) > 0:
            self._file.seek(int(skipped))
            if max_bytes:
                self._file.readline()  # the rest of a line whose beginning was skipped

    def lines(self) -> list[str]:
        """Return the complete lines since the last call."""
        content = self._file.read() if self._file else b""
        with contextlib.suppress(OSError):
            if not self._file or self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
                if self._file:  # the last lines of the rotated log
                    content += self._file.read()
                    self._file.close()
                self._file = self._open()
                content += self._file.read() if self._file else b""
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _open(self) -> BinaryIO | None:
        with contextlib.suppress(OSError):
            return self._path.open("rb")
        return None
