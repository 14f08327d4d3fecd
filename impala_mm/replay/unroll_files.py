"""Files of unrolls: each appears complete or not at all, and checksums show whether it is intact.

    0000000512.unrolls      a header line of JSON with its checksum, then the bytes of the unrolls

The line begins with the CRC-32 of its rest in eight hexadecimal digits and a space. Its JSON has
`keys`, `versions`, `sizes` and `checksum`, the CRC-32 of all that follows: the unrolls, as long as
`sizes` says, each an LZ4 block, or plain if that is not longer. A key is 2^32 times the number of a
stream (what one environment showed in a row), plus the unroll's number in it. An unroll is
little-endian arrays of T+1 entries in the order of `data.trajectory.Entry`; in a data set, whose
`data.json` has T as `unroll_length`, they are without `extras`.

`spill` writes a replay to them, and `data_set` what a policy has played. Each claims its folder:
one process writes there, and no other one's files are touched.
"""

import fcntl
import json
import mmap
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from impala_mm.config.errors import UserMistake
from impala_mm.replay.store import StoredUnroll
from impala_mm.runtime.safe_files import from_json

SUFFIX = ".unrolls"
_LOCK = "lock"


def encode(unrolls: Sequence[StoredUnroll]) -> bytes:
    """Return a file of unrolls: a line of JSON, then their bytes."""
    content = b"".join(unroll.content for unroll in unrolls)
    header: dict[str, Any] = {
        "keys": [unroll.key for unroll in unrolls],
        "versions": [unroll.version for unroll in unrolls],
        "sizes": [len(unroll.content) for unroll in unrolls],
        "checksum": zlib.crc32(content),
    }
    line = json.dumps(header).encode()
    return b"%08x %s\n" % (zlib.crc32(line), line) + content


class UnrollInFile(NamedTuple):
    """One unroll that lies in a file, which is opened whenever its bytes are read."""

    key: int
    version: int
    path: Path
    begin: int  # of its bytes in the file
    size: int

    def read(self) -> bytes:
        """Return its bytes."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


def find(path: Path) -> list[UnrollInFile]:
    """Return where a file's unrolls lie; raise ValueError if it is damaged.

    The file does not stay open: a process may have about 1,000 open files.
    """
    with path.open("rb") as file:
        return _check(path, file)[0]


def read(path: Path) -> list[StoredUnroll]:
    """Return a file's unrolls, whose bytes are mapped; raise ValueError if it is damaged."""
    with path.open("rb") as file:
        found, mapped = _check(path, file)
    return [
        StoredUnroll(each.key, each.version, mapped[each.begin : each.begin + each.size])
        for each in found
    ]


def _check(path: Path, file: IO[bytes]) -> tuple[list[UnrollInFile], memoryview]:
    """Return where the unrolls of an open file lie, and its bytes, which are mapped."""
    line = file.readline().rstrip(b"\n")
    if len(line) < 9 or int(line[:8], 16) != zlib.crc32(line[9:]):
        raise ValueError("its first line is damaged")
    header, begin = from_json(line[9:]), file.tell()
    keys, versions, sizes = (_numbers(header[name]) for name in ("keys", "versions", "sizes"))
    mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    content = mapped[begin:]
    if len(content) != sum(sizes) or zlib.crc32(content) != header["checksum"]:
        raise ValueError("its checksum differs")
    begins = (begin + np.cumsum(sizes) - sizes).astype(int).tolist()
    found = zip(keys, versions, begins, sizes, strict=True)
    return [UnrollInFile(key, version, path, at, size) for key, version, at, size in found], mapped


def _numbers(found: Any) -> list[int]:
    """Return a list of a header; raise ValueError unless it has numbers that an int64 holds."""
    if not (isinstance(found, list) and all(type(n) is int and 0 <= n < 2**63 for n in found)):
        raise ValueError("its first line has no lists of whole numbers")
    return found


def claim(
    about: Path, what: str, check: Callable[[], None], mistake: type[UserMistake] = UserMistake
) -> IO[str]:
    """Make a folder this process's own; return its lock, which is held until it is closed.

    The folder is made if it does not exist. `about` is the file that describes it, and `what` lies
    there, in words; if the file exists, `check` is called, which may raise an exception. Raises
    `mistake` if other files lie there or another process uses it, OSError if it is not writable.
    """
    folder = about.parent
    folder.mkdir(parents=True, exist_ok=True)
    if about.exists():
        check()
    elif any(p.name != _LOCK and not p.name.endswith(".part") for p in folder.iterdir()):
        raise mistake(
            f"{folder} is not empty, and no {what} lies there: name an empty or new folder"
        )
    lock = (folder / _LOCK).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise mistake(f"{folder} is used by another process: end that first") from None
    for part in folder.glob("*.part"):  # of a process that was killed
        part.unlink()
    return lock
