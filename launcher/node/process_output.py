"""What a process prints: into its window, into its log, and the last of it remembered."""

import collections
import contextlib
import os
import re
import time
from pathlib import Path

_MAX_LINES = 400  # lines that are remembered
_MAX_LINE_BYTES = 1 << 16  # bytes without an end of a line


class ProcessOutput:
    """What a process prints: into the window, into its log, and its last lines remembered."""

    def __init__(self, log: str, max_mb: float):
        """`log`: the file; empty if there is none, and the window is the user's own terminal."""
        self._log, self._max_bytes = Path(log) if log else None, max_mb * 2**20
        self._partial_line = b""
        self.lines: collections.deque[str] = collections.deque(maxlen=_MAX_LINES)

    def write(self, content: bytes) -> None:
        """As it came."""
        with contextlib.suppress(OSError):  # the window was closed
            os.write(1, content)
        if self._log:
            with contextlib.suppress(OSError):  # the disk is full, perhaps
                self._append(self._log, content)
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        if len(self._partial_line) > _MAX_LINE_BYTES:  # no line at all, it seems
            lines, self._partial_line = [*lines, self._partial_line], b""
        self.lines.extend(line.decode(errors="replace").rstrip("\r") for line in lines)

    def _append(self, log: Path, content: bytes) -> None:
        """Append to the log; begin a new one first if it has grown too long."""
        if log.exists() and log.stat().st_size > self._max_bytes:
            log.replace(log.with_name(f"{log.name}.1"))
        with log.open("ab") as file:
            file.write(content)

    def end_line(self) -> None:
        """Where the process did not: what comes next is another's."""
        if self._partial_line:
            self.write(b"\n")

    def write_message(self, message: str) -> None:
        """Write a message of the supervisor itself; the user's own terminal is left alone."""
        if not self._log:
            return
        self.end_line()
        self.write(f"{time.strftime('%H:%M:%S')} {message}\n".encode())


def error_lines(lines: list[str]) -> list[str]:
    """Of a process that failed: its first error among the last lines, where one can be told."""
    for i, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            end = i + 1
            while end < len(lines) and (lines[end].startswith(" ") or not lines[end].strip()):
                end += 1
            return lines[max(i, end - 7) : end + 1]
    errors = [line for line in lines if re.search(r"(^|\s)(error|fatal)\b", line, re.IGNORECASE)]
    return errors[:3] or lines[-5:]
