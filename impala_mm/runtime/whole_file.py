"""Files that appear complete or not at all, and are on the disk once they are written."""

import contextlib
import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file, in place of one that is there. Raises OSError."""
    work = path.with_name(path.name + ".part")
    try:
        with work.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        work.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            work.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
