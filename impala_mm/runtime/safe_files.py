"""Files that others write or read: opened within a folder, written whole, JSON for every program.

The dashboard reads all files of runs by `open_inside`, so that no link shows what lies elsewhere.
`write_whole` writes files that appear complete or not at all. Standard JSON has no infinity and no
NaN: `to_json` writes the text "inf" or "-inf", as a flag's value is written, and null, as in a
table with a missing number.
"""

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


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


def text_of(path: str | Path) -> str:
    """Return the text of a file of the system; empty if there is none, or it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe would wait for its writer


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, in place of one that is there. Raises OSError."""
    work = path.with_name(path.name + ".part")
    try:
        work.write_bytes(content)
        flush_to_disk(work)
        work.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            work.unlink()
        raise
    flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Wait until what was written to this file or folder is on the disk. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as standard JSON."""
    return json.dumps(_replace_non_finite(value), indent=indent, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return the value of JSON that `to_json` or an earlier version wrote; raises ValueError.

    Earlier versions wrote `Infinity` and `NaN`, which Python's parser accepts. NaN that was written
    as null is None.
    """
    try:
        return _restore_infinities(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{value}"
    if isinstance(value, dict):
        return {name: _replace_non_finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(each) for each in value]
    return value


def _restore_infinities(value: Any) -> Any:
    if isinstance(value, str):
        return _INFINITIES.get(value, value)
    if isinstance(value, dict):
        return {name: _restore_infinities(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_restore_infinities(each) for each in value]
    return value
