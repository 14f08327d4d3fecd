"""The output of a process: in its log or on the terminal, with the last lines in memory."""

import collections
import contextlib
import itertools
import os
import re
import select
import time
from pathlib import Path

_MAX_LINES = 400  # lines that are kept in memory
_MAX_LINE_BYTES = 1 << 16  # bytes after which text without a newline counts as a line
_MAX_FRAMES = 6  # frames that are shown of a crash in compiled code
FATAL = "Fatal Python error: "  # first line of such a crash
_MAX_DETAILS = 30  # lines of an error that are shown with it
_BLOCKED_SECONDS = 1.0  # seconds to wait for a terminal that takes no output


def write_to_terminal(content: bytes) -> None:
    """Write to stdout, and drop what its reader does not take.

    Ctrl-S in a terminal, or a pipe that is not read, would block this process: it could neither
    pass on a stop request nor notice the end of its parent.
    """
    with contextlib.suppress(OSError):  # the terminal was closed
        for begin in range(0, len(content), select.PIPE_BUF):
            if not select.select([], [1], [], _BLOCKED_SECONDS)[1]:
                return
            os.write(1, content[begin : begin + select.PIPE_BUF])


class ProcessOutput:
    """The output of a process: in its log or on the terminal, with the last lines in memory."""

    def __init__(self, log: str, max_mb: float):
        """Begin an empty output.

        `log` is a file; empty: there is none, and the user's own terminal shows the output.
        """
        self._log, self._max_bytes = _in_held_folder(log) if log else None, max_mb * 2**20
        self._partial_line = b""
        self.lines: collections.deque[str] = collections.deque(maxlen=_MAX_LINES)

    def write(self, content: bytes) -> None:
        """Write output to the log or the terminal, unchanged."""
        if not self._log:
            write_to_terminal(content)
        else:
            with contextlib.suppress(OSError):  # the disk may be full
                self._append(self._log, content)
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        if len(self._partial_line) > _MAX_LINE_BYTES:  # probably not text
            lines, self._partial_line = [*lines, self._partial_line], b""
        self.lines.extend(line.decode(errors="replace").rstrip("\r") for line in lines)

    def _append(self, log: Path, content: bytes) -> None:
        """Append to the log; begin a new one first if it has grown too long."""
        if log.exists() and log.stat().st_size > self._max_bytes:
            log.replace(log.with_name(f"{log.name}.1"))
        with log.open("ab") as file:
            file.write(content)

    def end_line(self) -> None:
        """End the current line if the process did not: other text follows."""
        if self._partial_line:
            self.write(b"\n")

    def write_message(self, message: str) -> None:
        """Write a message of the supervisor itself; the user's own terminal is left alone."""
        if not self._log:
            return
        self.end_line()
        line = f"{time.strftime('%H:%M:%S')} {message}\n"
        self.write(line.encode(errors="backslashreplace"))


def _in_held_folder(log: str) -> Path:
    """Return a path of the log that leads to its present folder, wherever that is moved.

    If the folder is removed, nothing is written to another one that takes its name.
    """
    path = Path(log)
    with contextlib.suppress(OSError):  # there is no folder yet
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        return Path(f"/proc/self/fd/{folder}", path.name)
    return path


def error_lines(lines: list[str]) -> list[str]:
    """Return the lines that explain a failure: the first traceback or errors, or the last five."""
    for i, line in enumerate(lines):
        if line.startswith(FATAL):  # faulthandler prints the innermost frame first
            frames = (each for each in lines[i:] if each.startswith("  File "))
            return [line, *itertools.islice(frames, _MAX_FRAMES)]
        if line.startswith("Traceback (most recent call last)"):
            end = i + 1
            while end < len(lines) and (lines[end].startswith(" ") or not lines[end].strip()):
                end += 1
            return lines[max(i, end - 7) : end + 1]
    errors = [i for i, line in enumerate(lines) if _ERROR.search(line)]
    return [line for i in errors[:3] for line in _with_details(lines, i)] or lines[-5:]


_ERROR = re.compile(r"(^|\s)(error|fatal)\b", re.IGNORECASE)


def _with_details(lines: list[str], start: int) -> list[str]:
    """Return a line and the indented lines that follow it, such as a traceback."""
    end = start + 1
    while end < len(lines) and lines[end].startswith("  ") and not _ERROR.search(lines[end]):
        end += 1
    return lines[start : min(end, start + _MAX_DETAILS)]
