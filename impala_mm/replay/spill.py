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
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from impala_mm.config.errors import UserMistake
from impala_mm.replay import unroll_files
from impala_mm.replay.store import StoredUnroll
from impala_mm.replay.unroll_files import SUFFIX
from impala_mm.runtime import safe_files
from impala_mm.runtime.log import Say

_ABOUT = "spill.json"
_UNREAD = ".unread"  # added to the name of a file that could not be read


class Owner(NamedTuple):
    """The run whose unrolls lie in a folder."""

    run: str  # the folder of the run
    layout: str  # `UnrollCodec.digest`


class _File(NamedTuple):
    """One file of unrolls."""

    path: Path
    keys: np.ndarray  # int64 [N]


def folder_of(spill: Path, rank: int) -> Path:
    """Return the folder in which the learner of this rank keeps its replay."""
    return spill / f"learner-{rank}"


def stored_bytes(spill: Path) -> dict[Path, int]:
    """Return the bytes of unrolls in each learner's folder below a folder, if it exists."""
    found: dict[Path, int] = {}
    for path in spill.glob(f"learner-*/*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another learner has deleted it since
            found[path.parent] = found.get(path.parent, 0) + path.stat().st_size
    return found


class Spill:
    """The files of one learner's replay."""

    def __init__(self, folder: Path, owner: Owner, per_file: int, say: Say, is_new: bool = False):
        """Use a folder, which is made if it does not exist, for `per_file` unrolls in a file.

        `is_new`: the run begins, so there are no unrolls of it yet. Raises UserMistake if the
        folder cannot be written, or belongs to something else.
        """
        self._folder, self._owner, self._per_file, self._say = folder, owner, per_file, say
        self._is_new = is_new
        self._waiting: list[StoredUnroll] = []  # for the next file
        self._files: list[_File] = []
        self.stopped = ""  # why nothing is written any more
        try:
            self._lock = unroll_files.claim(folder / _ABOUT, "replay", self._refuse_others)
            if not (folder / _ABOUT).exists():
                safe_files.write_whole(folder / _ABOUT, json.dumps(owner._asdict()).encode())
        except OSError as error:
            raise UserMistake(
                f"{folder} cannot be written: {error.strerror}: make it writable, or name another "
                f"folder"
            ) from None

    def _refuse_others(self) -> None:
        about = self._folder / _ABOUT
        try:
            found = Owner(**json.loads(about.read_text()))
        except (ValueError, TypeError, RecursionError):
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
        if self._is_new and any(self._folder.glob(f"*{SUFFIX}")):
            raise UserMistake(
                f"{self._folder} holds unrolls of an earlier run in {found.run}, and the run there "
                f"is new: delete it, or name another folder"
            )

    def read(self) -> list[StoredUnroll]:
        """Return the unrolls in intact files, from the oldest to the newest.

        Damaged files are deleted; those that the system does not let it read get another name.
        """
        unrolls: list[StoredUnroll] = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                found = unroll_files.read(path)
            except OSError as error:
                kept = path.with_name(path.name + _UNREAD)
                self._say(
                    f"replay: {path} cannot be read ({error.strerror}) and is left out: it is kept "
                    f"as {kept}, which a start after `mv` to its old name reads again"
                )
                with contextlib.suppress(OSError):
                    path.rename(kept)
                continue
            except (ValueError, KeyError, TypeError) as error:
                self._say(f"replay: {path} is damaged ({error}): it is left out and deleted")
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            unrolls += found
            self._files.append(_File(path, np.array([u.key for u in found], np.int64)))
        return unrolls

    def next_key(self) -> int:
        """Return the first key above those of all files, also of those that could not be read."""
        unread = [
            int(path.name.split(".")[0]) + self._per_file
            for path in self._folder.glob(f"[0-9]*{SUFFIX}{_UNREAD}")
        ]
        return max([int(file.keys[-1]) + 1 for file in self._files] + unread, default=0)

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
        path = self._folder / f"{unrolls[0].key:010d}{SUFFIX}"
        try:
            safe_files.write_whole(path, unroll_files.encode(unrolls))
            written = unroll_files.read(path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "") or f"{error}"
            self.stopped = why
            self._say(
                f"replay: {path} cannot be written ({why}); nothing more is spilled to disk, and "
                f"training continues with a replay that fits in memory"
            )
            return []
        self._files.append(_File(path, np.array([u.key for u in unrolls], np.int64)))
        return written

    def delete_unused(self, is_used: Callable[[np.ndarray], bool]) -> None:
        """Delete the oldest files of whose keys none is used."""
        while self._files and not is_used(self._files[0].keys):
            with contextlib.suppress(OSError):
                self._files.pop(0).path.unlink()

    def close(self) -> None:
        """Let another process use the folder; unrolls of an incomplete file are lost."""
        self._lock.close()
