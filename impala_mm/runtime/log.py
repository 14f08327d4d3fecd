"""The lines that a process prints, and writes with the time into a log of bounded size."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from impala_mm.config import messages

Say = Callable[[str], None]  # prints and logs a line


class BoundedLog:
    """A log file of bounded size; lines that the disk does not take are lost without an error."""

    def __init__(self, path: Path, max_mb: float):
        self._path, self._max_bytes = path, max_mb * 2**20

    def move(self, folder: Path) -> None:
        """Write to a file of this name in another folder from now on."""
        self._path = folder / self._path.name

    def write(self, text: str) -> None:
        """Append `text`, one or several lines, with the time before the first."""
        with (
            contextlib.suppress(OSError),
            self._path.open("a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        rotate_if_long(self._path, self._max_bytes)


def rotate_if_long(path: Path, max_bytes: float) -> None:
    """Move the content of a log that is longer than `max_bytes` to LOG.1.

    The file itself stays, so that a process that has it open can still append to it.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size > max_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


class ProcessLogger:
    """A printer of lines that begin with a process's name; it also logs them once `log` is set."""

    def __init__(self, name: str):
        self._name = name
        self.log: BoundedLog | None = None

    def __call__(self, message: str) -> None:
        """Print and log a line."""
        line = f"[{self._name}] {messages.escape(message)}"
        if self.log:
            self.log.write(line)
        # The terminal is gone, its disk is full, or an environment has closed sys.stdout.
        with contextlib.suppress(OSError, ValueError):
            # One write, since other processes print to the same terminal.
            print(f"{line}\n", end="", flush=True)
