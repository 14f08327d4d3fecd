"""A process's log in the run's folder: what it says, with the time, and bounded in size."""

import contextlib
import os
import shutil
import time
from pathlib import Path


class BoundedLog:
    """Lines of one process; a disk that takes none costs lines, not the run."""

    def __init__(self, path: Path, max_mb: float):
        self._path, self._most = path, max_mb * 2**20

    def write(self, text: str) -> None:
        """Some lines, the first with the time."""
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        rotate_if_long(self._path, self._most)


def rotate_if_long(path: Path, most: float) -> None:
    """Begins a log anew that is longer than so many bytes; what it held becomes LOG.1.

    Whoever appends to it goes on to: its content is moved, not the file.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size > most:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


class ProcessLogger:
    """Prints in the name of one process; into its log, too, once it has one."""

    def __init__(self, name: str):
        self._name = name
        self.log: BoundedLog | None = None

    def __call__(self, message: str) -> None:
        """One line of it."""
        line = f"[{self._name}] {message}"
        if self.log:
            self.log.write(line)
        with contextlib.suppress(OSError):  # the terminal is gone, or the disk behind it full
            print(line, flush=True)
