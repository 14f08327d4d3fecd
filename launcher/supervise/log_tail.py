"""Follows a log file line by line: for a frontend's terminal, and for the window of a process."""

import contextlib
import math
import os
import re
from pathlib import Path
from typing import BinaryIO

# What a terminal may be sent: colours, tabs, and the carriage return of a line's end; or one
# character to be judged by itself.
_HARMLESS_OR_OTHER = re.compile(r"(\x1b\[[0-9;]*m|\t|\r\Z)|[^ -~]")


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
        with contextlib.suppress(OSError):  # it is being rotated, or not written yet
            if not self._file or self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
                if self._file:  # the last lines of the rotated log
                    content += self._file.read()
                    self._file.close()
                self._file = self._open()
                content += self._file.read() if self._file else b""
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _open(self) -> BinaryIO | None:
        try:
            return self._path.open("rb")
        except OSError:  # it is not written yet
            return None


def for_terminal(line: str) -> str:
    r"""Return a line of a log as a terminal shows it: in colour, with other characters escaped.

    Each that cannot be seen, such as the beginning of a command to the terminal, is written as
    \x1b. `impala_mm.config.messages`, which does so in messages, is not on other hosts.
    """
    if line.isprintable():
        return line
    return _HARMLESS_OR_OTHER.sub(
        lambda found: found[0] if found[1] or found[0].isprintable() else ascii(found[0])[1:-1],
        line,
    )
