"""Opens files of a folder that another host or another person may have written.

The dashboard reads all files of runs by it, so that no link shows what lies elsewhere.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def open_inside(path: Path, folder: Path) -> BinaryIO:
    """Open a regular file that lies in `folder`, or below it, for reading.

    What was opened is compared, not the name: links may be exchanged at any time. Raises OSError,
    also if the file lies elsewhere.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    actual = Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))
    if not actual.is_relative_to(folder.resolve()):
        why = f"it leads out of {folder}, and is not read"
    elif not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        why = "it is not a regular file"
    else:
        return file
    file.close()
    raise PermissionError(errno.EACCES, why, str(path))


def text_reader(folder: Path) -> Callable[[Path], str]:
    """Return a function that reads a file in `folder` by `open_inside`."""

    def read_text(path: Path) -> str:
        with open_inside(path, folder) as file:
            return file.read().decode(errors="replace")

    return read_text


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe would wait for its writer
