"""A replay on disk: unrolls in files that survive the process, and lie in memory no longer.

    FOLDER/learner-R/
        spill.json              the run, and the layout of its unrolls
        lock                    held by the process that writes here
        0000000512.unrolls      unrolls from key 512 on: a header line, and their bytes

A file is written under another name and renamed once it is on the disk, so a process that is
killed loses the unrolls of one file at most. The bytes of a written file are mapped: the kernel
reads them when they are drawn.
"""

import contextlib
import fcntl
import json
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from impala_mm.config.messages import UserMistake
from impala_mm.replay.store import StoredUnroll
from impala_mm.runtime.log import Say

_ABOUT, _LOCK, _SUFFIX, _WORK = "spill.json", "lock", ".unrolls", ".unrolls.part"


class Owner(NamedTuple):
    """The run whose unrolls lie in a folder."""

    run: str  # the folder of the run
    layout: str  # `UnrollCodec.digest`


class _File(NamedTuple):
    """One file of unrolls."""

    path: Path
    keys: np.ndarray  # int64 [N]


class Spill:
    """The files of one learner's replay."""

    def __init__(self, folder: Path, owner: Owner, per_file: int, say: Say):
        """Use a folder, which is made if it does not exist, for `per_file` unrolls in a file.

        Raises UserMistake if it cannot be written, or belongs to something else.
        """
        self._folder, self._owner, self._per_file, self._say = folder, owner, per_file, say
        self._waiting: list[StoredUnroll] = []  # for the next file
        self._files: list[_File] = []
        self.stopped = ""  # why nothing is written any more
        try:
            self._lock = self._claim()
        except OSError as error:
            raise UserMistake(f"{folder} cannot be written: {error.strerror}") from None

    def _claim(self) -> IO[str]:
        """Make the folder this process's own; return its lock."""
        folder = self._folder
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / _ABOUT
        if about.exists():
            self._refuse_others(about)
        elif any(p.name != _LOCK and not p.name.endswith(".part") for p in folder.iterdir()):
            raise UserMistake(
                f"{folder} is not empty, and no replay lies there: name an empty or new folder"
            )
        lock = (folder / _LOCK).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserMistake(f"{folder} is used by another process: end that first") from None
        if not about.exists():
            _write(about, json.dumps(self._owner._asdict()).encode())
        for part in folder.glob(f"*{_WORK}"):  # of a process that was killed
            part.unlink()
        return lock

    def _refuse_others(self, about: Path) -> None:
        try:
            found = Owner(**json.loads(about.read_text()))
        except (ValueError, TypeError):
            raise UserMistake(
                f"{about} cannot be read: delete {self._folder}, or name another"
            ) from None
        if found.run != self._owner.run:
            raise UserMistake(
                f"{self._folder} belongs to the run in {found.run}: name another folder, or "
                f"delete it"
            )
        if found.layout != self._owner.layout:
            raise UserMistake(
                f"{self._folder} holds unrolls of another network, environment or --unroll_length "
                f"(layout {found.layout}, now {self._owner.layout}): name another folder, or "
                f"delete it"
            )

    def read(self) -> list[StoredUnroll]:
        """Return the unrolls in intact files, from the oldest to the newest; drop the others."""
        unrolls: list[StoredUnroll] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                found = _read(path)
            except (OSError, ValueError, KeyError) as error:
                self._say(f"replay: {path} is damaged and left out ({error})")
                path.unlink(missing_ok=True)
                continue
            unrolls += found
            self._files.append(_File(path, np.array([u.key for u in found], np.int64)))
        return unrolls

    def add(self, unroll: StoredUnroll) -> list[StoredUnroll]:
        """Take an unroll; return those that have been written, with their bytes in the file.

        A disk that is full, or fails, ends the spill: unrolls then stay in memory.
        """
        if self.stopped:
            return []
        self._waiting.append(unroll)
        if len(self._waiting) < self._per_file:
            return []
        unrolls, self._waiting = self._waiting, []
        path = self._folder / f"{unrolls[0].key:010d}{_SUFFIX}"
        try:
            _write(path, _encode(unrolls))
            written = _read(path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "") or f"{error}"
            self.stopped = why
            self._say(
                f"replay: {path} cannot be written ({why}); nothing more is spilled to disk, and "
                f"training continues with the replay in memory"
            )
            return []
        self._files.append(_File(path, np.array([u.key for u in unrolls], np.int64)))
        return written

    def delete_unused(self, is_used: Callable[[np.ndarray], bool]) -> None:
        """Delete the files of whose keys none is used."""
        kept = []
        for file in self._files:
            if is_used(file.keys):
                kept.append(file)
            else:
                with contextlib.suppress(OSError):
                    file.path.unlink()
        self._files = kept

    def close(self) -> None:
        """Let another process use the folder; unrolls of an incomplete file are lost."""
        self._lock.close()


def _encode(unrolls: Sequence[StoredUnroll]) -> bytes:
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


def _read(path: Path) -> list[StoredUnroll]:
    """Return a file's unrolls, whose bytes are mapped; raise ValueError if it is damaged."""
    with path.open("rb") as file:
        line = file.readline().rstrip(b"\n")
        if len(line) < 9 or int(line[:8], 16) != zlib.crc32(line[9:]):
            raise ValueError("its first line is damaged")
        header, begin = json.loads(line[9:]), file.tell()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    content = memoryview(mapped)[begin:]
    if len(content) != sum(header["sizes"]) or zlib.crc32(content) != header["checksum"]:
        raise ValueError("its checksum differs")
    ends = np.cumsum(header["sizes"]).tolist()
    return [
        StoredUnroll(key, version, content[end - size : end])
        for key, version, size, end in zip(
            header["keys"], header["versions"], header["sizes"], ends, strict=True
        )
    ]


def _write(path: Path, content: bytes) -> None:
    """Write a file that appears complete or not at all."""
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
