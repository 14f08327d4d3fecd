"""Folders that appear complete or not at all, and whose files are verified before use.

A folder is written under another name. `finish` describes its files in about.json, waits until all
of them are on the disk, and then gives the folder its name. `checkpoint` saves the variables that
all learners share this way, and `learner.own_state` what each learner has for itself.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from impala_mm.config.errors import BadCheckpoint, UserMistake
from impala_mm.runtime import safe_files
from impala_mm.runtime.safe_files import from_json, to_json


class Damaged(UserMistake, BadCheckpoint):
    """A folder's files differ from what was written; the message says how."""


def finish(work: Path, final: Path, about: dict[str, Any]) -> None:
    """Rename the folder `work` to `final` once all that it holds is on the disk.

    `about` and each file's size and SHA-256 are written to its about.json. Raises OSError.
    """
    paths = describe(work, about)
    for path in [*paths, work / "about.json", work]:
        _flush_to_disk(path)
    work.rename(final)
    _flush_to_disk(final.parent)


def describe(folder: Path, about: dict[str, Any]) -> list[Path]:
    """Write `about` and the files' sizes and SHA-256 to a folder's about.json; return the files."""
    paths = sorted(folder.rglob("*"))
    files = {str(p.relative_to(folder)): _fingerprint(p) for p in paths if p.is_file()}
    (folder / "about.json").write_text(to_json(about | {"files": files}))
    return paths


def change(folder: Path, numbers: dict[str, Any]) -> None:
    """Replace numbers of a folder's about.json; raise OSError, and ValueError if it is damaged."""
    path = folder / "about.json"
    about = from_json(path.read_text())
    if about | numbers != about:
        safe_files.write_whole(path, to_json(about | numbers).encode())


def verify(path: Path) -> None:
    """Raise Damaged if a file differs from the description in about.json, or cannot be read."""
    try:
        files = from_json((path / "about.json").read_text())["files"]
        sizes = {name: int(size) for name, (size, _) in files.items()}
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{path} has no about.json that can be read") from None
    for name, written in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Damaged(f"{path}/about.json names a file elsewhere: {name}")
        try:
            found = _fingerprint(path / name)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise Damaged(f"{path / name} cannot be read: {why}") from None
        if found != written:
            what = "cut short" if found[0] < sizes[name] else "changed"
            raise Damaged(f"{path / name} is {what} since it was written")


def size(path: Path) -> int:
    """Return the number of bytes of a folder's files; those that vanish meanwhile do not count."""
    total = 0
    for each in path.rglob("*"):
        try:
            total += each.stat().st_size if each.is_file() else 0
        except OSError:
            continue
    return total


def refuse_full_disk(folder: Path, needed: int) -> None:
    """Raise OSError if the disk of an existing folder has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"the disk of {folder.parent} has {free / 1e6:,.1f} MB free, and the last save took "
            f"{needed / 1e6:,.1f} MB"
        )


def _fingerprint(path: Path) -> list[Any]:
    """Return a file's [size in bytes, SHA-256]. Raises OSError, and ValueError for a pipe."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _flush_to_disk(path: Path) -> None:
    """Wait until what was written to this file or folder is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
