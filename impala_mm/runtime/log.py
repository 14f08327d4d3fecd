"""What a process says: to the terminal, and with the time into a log of bounded size."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

Say = Callable[[str], None]  # says a line to whoever watches the process


class BoundedLog:
    """A log file; a disk that takes no lines costs lines, not the run."""

    def __init__(self, path: Path, max_mb: float):
        self._path, self._max_bytes = path, max_mb * 2**20

    def write(self, text: str) -> None:
        """Append some lines, the first with the time."""
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        rotate_if_long(self._path, self._max_bytes)


def rotate_if_long(path: Path, max_bytes: float) -> None:
    """Empty a log that is longer than so many bytes; what it held becomes LOG.1.

    Its content is moved, not the file: whoever appends to it still can.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size > max_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


class ProcessLogger:
    """Prints lines in the name of one process, and logs them once it has a log."""

    def __init__(self, name: str):
        self._name = name
        self.log: BoundedLog | None = None

    def __call__(self, message: str) -> None:
        """Print and log a line."""
        line = f"[{self._name}] {message}"
        if self.log:
            self.log.write(line)
        with contextlib.suppress(OSError):  # the terminal is gone, or the disk behind it full
            print(line, flush=True)
