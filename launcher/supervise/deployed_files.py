"""A folder of this host to which a frontend copies the project: compares and receives files.

`.deployed.json` in the folder lists the files that were copied; no other file is ever changed:

    {"mark": a random name of this folder, the same on all hosts that share it,
     "files": {name: [digests of the file as it was copied]}}

The files come as a tar archive over `file_service`. All of them are moved into place at the end; if
the connection breaks or the disk is full, none is.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.supervise.json_files import fields_fit, read_json

MANIFEST = ".deployed.json"
_WORK_PREFIX = ".deploying-"
_CHUNK = 1 << 20
_MAX_NAMED = 3  # files that an error message names


def digest(path: Path) -> str:
    """Return the digest of a file, with an x appended if it is executable; empty if it is missing.

    The digest of a link is "-> TARGET".
    """
    try:
        status = path.lstat()
    except OSError:
        return ""
    if stat.S_ISLNK(status.st_mode):
        return f"-> {os.readlink(path)}"
    if not stat.S_ISREG(status.st_mode):
        return "no file"
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest() + ("x" if status.st_mode & stat.S_IXUSR else "")


def file_identity(path: Path) -> list[int]:
    """Return what identifies a file, also on another host that shares its file system."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def compare(folder: str, wanted: dict[str, str], clone: list[int]) -> dict[str, Any]:
    """Compare a folder with the `wanted` files (digests by name).

    Return the missing files, or under "why" the reason not to change the
    folder. `clone`: the identity of the first wanted file on the frontend's machine.
    """
    base = Path(Path.home(), os.path.expanduser(folder))
    present = {name: digest(base / name) for name in wanted}
    if refusal := _refusal(base, present, wanted, clone):
        return {"why": refusal}
    base.mkdir(parents=True, exist_ok=True)
    manifest = _read_manifest(base) or _create_manifest(base)
    return {
        "why": "",
        "folder": str(base),
        "mark": manifest["mark"],
        "missing": [name for name in wanted if present[name] != wanted[name]],
        "settled": manifest["files"] == {name: [each] for name, each in wanted.items()},
        "nvidia": bool(shutil.which("nvidia-smi")),
    }


def _refusal(
    base: Path, present: Mapping[str, str], wanted: Mapping[str, str], clone: list[int]
) -> str:
    if clone and file_identity(base / next(iter(wanted))) == clone:
        return f"{base} is the clone that this frontend runs from: it needs no --deploy"
    if (base / ".git").exists():
        return (
            f"{base} is a git clone, which --deploy leaves alone: run `git pull` in it and start "
            f"without --deploy, or name another workdir in the CSV"
        )
    if base in (Path.home(), Path("/")):
        return f"{base} is not a folder for one project: name another workdir in the CSV"
    deployed = _read_manifest(base).get("files", {})
    own = [
        name
        for name, now in present.items()
        if now
        and _without_mode(now) not in map(_without_mode, (*deployed.get(name, []), wanted[name]))
    ]
    if not own:
        return ""
    more = f" and {len(own) - _MAX_NAMED} more" if len(own) > _MAX_NAMED else ""
    return (
        f"{base} has files that were not deployed, or were changed since "
        f"({', '.join(own[:_MAX_NAMED])}{more}): move them away, or name another workdir in the CSV"
    )


def _without_mode(digest: str) -> str:
    return digest.removesuffix("x")


def _read_manifest(base: Path) -> dict[str, Any]:
    """Return the list of deployed files; empty if nothing was deployed, or it is damaged."""
    content, kinds = read_json(base / MANIFEST), {"mark": str, "files": dict[str, list[str]]}
    return content if kinds.keys() <= content.keys() and fields_fit(content, kinds) else {}


def _create_manifest(base: Path) -> dict[str, Any]:
    """Write an empty list of files, unless another host that shares the folder has just done so."""
    work = base / f"{MANIFEST}.{secrets.token_hex(4)}"
    work.write_text(json.dumps({"mark": secrets.token_hex(8), "files": {}}))
    try:
        os.link(work, base / MANIFEST)
    except FileExistsError:
        if not _read_manifest(base):  # it is damaged
            work.replace(base / MANIFEST)
    except OSError:  # some file systems have no links
        work.replace(base / MANIFEST)
    finally:
        work.unlink(missing_ok=True)
    return _read_manifest(base)


# -- receiving


def unpack(
    base: Path, wanted: dict[str, str], sent: Sequence[str], chunks: Iterable[bytes]
) -> None:
    """Unpack an archive of the files `sent` into the folder `base`; `wanted`: digests of all files.

    Deployed files that are no longer wanted are removed. Raises OSError, and what `chunks` raises;
    the folder is then unchanged.
    """
    try:
        with (
            _work_folder(base) as work,
            tarfile.open(fileobj=_ChunkReader(chunks), mode="r|*") as archive,  # type: ignore[call-overload]
        ):
            received = {}
            for number, member in enumerate(archive):
                received[member.name] = work / str(number)
                _extract(archive, member, received[member.name])
            for name in sent:
                if name not in received or digest(received[name]) != wanted[name]:
                    raise OSError(
                        0, f"{name} arrived incomplete, or changed while it was sent: try again"
                    )
            _install(base, wanted, received)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(base)) from None
    except (tarfile.TarError, ValueError, zlib.error) as error:  # a damaged archive
        raise OSError(0, str(error), str(base)) from None


class _ChunkReader:
    """A file that is read from its pieces."""

    def __init__(self, chunks: Iterable[bytes]):
        self._chunks, self._rest = iter(chunks), b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (piece := next(self._chunks, b"")):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.issym():
        path.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    assert content
    # A receiver's stricter umask is kept.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode)
    with os.fdopen(handle, "wb") as file:
        shutil.copyfileobj(content, file, _CHUNK)


def _install(base: Path, wanted: dict[str, str], received: dict[str, Path]) -> None:
    """Move the received files into place, and remove deployed files that are no longer wanted."""
    manifest = _read_manifest(base)
    before: dict[str, list[str]] = manifest["files"]
    after = {name: [each] for name, each in wanted.items()}
    # If the rest is interrupted, no deployed file is taken for one of the user's own.
    both = {name: before.get(name, []) + after.get(name, []) for name in before | after}
    _write_manifest(base, manifest | {"files": both})
    for name in before.keys() - wanted.keys():
        if _without_mode(digest(base / name)) in map(_without_mode, before[name]):
            _remove_file(base, name)
    for name, work in received.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        work.replace(path)
    _write_manifest(base, manifest | {"files": after})


def _remove_file(base: Path, name: str) -> None:
    """Remove a file, its compiled Python code, and folders that are then empty."""
    path = base / name
    path.unlink()
    compiled = path.parent / "__pycache__"
    for each in compiled.glob(f"{path.stem}.*.pyc"):
        each.unlink()
    for folder in (compiled, *path.parents):
        if folder == base:
            return
        with contextlib.suppress(OSError):
            folder.rmdir()


def _write_manifest(base: Path, manifest: dict[str, Any]) -> None:
    work = base / f"{MANIFEST}.{secrets.token_hex(4)}"
    try:
        work.write_text(json.dumps(manifest))
        work.replace(base / MANIFEST)
    finally:
        work.unlink(missing_ok=True)


@contextlib.contextmanager
def _work_folder(base: Path) -> Iterator[Path]:
    """Provide an empty folder in `base`; remove it afterwards, and those left by others."""
    for left in base.glob(f"{_WORK_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=base))
    try:
        with _locked(work):
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder. Raises OSError if another process holds the lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
