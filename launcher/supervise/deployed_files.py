"""A folder of this host to which a frontend copies the project: compares and receives files.

`.deployed.json` in the folder lists the files that were copied; no other file is ever changed:

    {"mark": a random name of this folder, the same on all hosts that share it,
     "files": {name: [digests of the file as it was copied]}}

A file arrives under `arrival_path`, where a transfer that was cut is continued. `install` moves all
of them into place once they are complete.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher.supervise.errors import join_names
from launcher.supervise.json_files import file_size, from_json, read_json

MANIFEST = ".deployed.json"
_ARRIVALS = ".deploying"
_CHUNK = 1 << 20
_LINK = "-> "  # begins the digest of a link


def digest(path: Path) -> str:
    """Return the digest of a file, with an x appended if it is executable; empty if it is missing.

    The digest of a link is "-> TARGET".
    """
    try:
        status = path.lstat()
    except OSError:
        return ""
    if stat.S_ISLNK(status.st_mode):
        return f"{_LINK}{os.readlink(path)}"
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


class _Manifest(NamedTuple):
    """The content of `.deployed.json`."""

    mark: str
    files: dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The answer of `compare` to a frontend."""

    why: str = ""
    folder: str = ""
    mark: str = ""
    # With the bytes that have arrived.
    missing: dict[str, int] = dataclasses.field(default_factory=dict)
    settled: bool = False
    nvidia: bool = False


def arrivals(folder: str) -> str:
    """Return the folder in which files arrive."""
    return f"{folder}/{_ARRIVALS}"


def compare(folder: str, wanted: dict[str, str], clone: list[int]) -> dict[str, Any]:
    """Compare a folder with the `wanted` files (digests by name).

    Return the missing files with the bytes of them that have arrived, or under "why" the reason
    not to change the folder. `clone`: the identity of the first wanted file on the frontend's
    machine.
    """
    base = Path(Path.home(), os.path.expanduser(folder))
    present = {name: digest(base / name) for name in wanted}
    if refusal := _refusal(base, present, wanted, clone):
        return {"why": refusal}
    base.mkdir(parents=True, exist_ok=True)
    missing = [name for name in wanted if present[name] != wanted[name]]
    if missing:
        (base / _ARRIVALS).mkdir(mode=0o700, exist_ok=True)  # files get their modes by `install`
    else:  # left by a transfer that was cut, of files that are not wanted any more
        shutil.rmtree(base / _ARRIVALS, ignore_errors=True)
    if not _read_manifest(base).mark:
        _create_manifest(base)
    manifest = _read_manifest(base)
    return {
        "why": "",
        "folder": str(base),
        "mark": manifest.mark,
        "missing": {
            name: file_size(arrival_path(str(base), name, wanted[name])) for name in missing
        },
        "settled": manifest.files == {name: [each] for name, each in wanted.items()},
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
    deployed = _read_manifest(base).files
    own = [
        name
        for name, now in present.items()
        if now
        and _without_mode(now) not in map(_without_mode, (*deployed.get(name, []), wanted[name]))
    ]
    if not own:
        return ""
    return (
        f"{base} has files that were not deployed, or were changed since "
        f"({join_names(own)}): move them away, or name another workdir in the CSV"
    )


def _without_mode(digest: str) -> str:
    return digest.removesuffix("x")


def _read_manifest(base: Path) -> _Manifest:
    """Return the list of deployed files; empty if nothing was deployed, or it is damaged."""
    return from_json(_Manifest, read_json(base / MANIFEST)) or _Manifest("", {})


def _create_manifest(base: Path) -> None:
    """Write an empty list of files, unless another host that shares the folder has just done so."""
    work = base / f"{MANIFEST}.{secrets.token_hex(4)}"
    work.write_text(json.dumps(_Manifest(secrets.token_hex(8), {})._asdict()))
    try:
        os.link(work, base / MANIFEST)
    except FileExistsError:
        if not _read_manifest(base).mark:  # it is damaged
            work.replace(base / MANIFEST)
    except OSError:  # some file systems have no links
        work.replace(base / MANIFEST)
    finally:
        work.unlink(missing_ok=True)


# -- receiving


def arrival_path(folder: str, name: str, digest: str) -> str:
    """Return where a file with this digest arrives before `install`."""
    return f"{arrivals(folder)}/{digest[:16]}/{name}"


def install(folder: str, wanted: dict[str, str], modes: dict[str, int]) -> None:
    """Move the files of `modes`, which have arrived, into place; `wanted`: digests of all files.

    Deployed files that are no longer wanted are removed. Links come as their digests. Raises
    OSError if a file is incomplete; no file was moved then.
    """
    base = Path(folder)
    arrived = {
        name: Path(arrival_path(folder, name, wanted[name]))
        for name in modes
        if not wanted[name].startswith(_LINK)
    }
    for name, path in arrived.items():
        if _without_mode(digest(path)) != _without_mode(wanted[name]):
            path.unlink(missing_ok=True)
            raise OSError(
                0, f"{name} is incomplete, or changed while it was sent: try again", folder
            )
    manifest = _read_manifest(base)
    before = manifest.files
    after = {name: [each] for name, each in wanted.items()}
    # If the rest is interrupted, no deployed file is taken for one of the user's own.
    both = {name: before.get(name, []) + after.get(name, []) for name in before | after}
    _write_manifest(base, manifest._replace(files=both))
    for name in before.keys() - wanted.keys():
        if _without_mode(digest(base / name)) in map(_without_mode, before[name]):
            _remove_file(base, name)
    for name, mode in modes.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        if name in arrived:
            arrived[name].chmod(mode & ~_umask())
            arrived[name].replace(base / name)
        else:
            link = base / _ARRIVALS / secrets.token_hex(4)
            link.symlink_to(wanted[name].removeprefix(_LINK))
            link.replace(base / name)
    _write_manifest(base, manifest._replace(files=after))
    for name in arrived:  # another deployment may write to others
        shutil.rmtree(base / _ARRIVALS / wanted[name][:16], ignore_errors=True)
    with contextlib.suppress(OSError):  # it has other files
        (base / _ARRIVALS).rmdir()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


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
        with contextlib.suppress(OSError):  # it has other files
            folder.rmdir()


def _write_manifest(base: Path, manifest: _Manifest) -> None:
    work = base / f"{MANIFEST}.{secrets.token_hex(4)}"
    try:
        work.write_text(json.dumps(manifest._asdict()))
        work.replace(base / MANIFEST)
    finally:
        work.unlink(missing_ok=True)
