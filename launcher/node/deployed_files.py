"""A folder of this host that a frontend copies files to: what it lacks, and how it gets them.

`.deployed.json` in it says which files came that way; no other file is ever touched:

    {"mark": of this folder, on whichever host it is seen,
     "files": {name: [the digests that it came with]}}

What comes is a tar: a `.deployed.json`, then files. All of them take their places at the end, or,
where the connection broke or the disk is full, none of them does.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MANIFEST = ".deployed.json"
_CODE_ROOT = Path(__file__).resolve().parents[2]  # the project's clone, or what was sent of it
_WORK_PREFIX = ".deploying-"
_CHUNK = 1 << 20
_SILENT_SECONDS = 60  # after which nobody sends any more
_RECEIVE_PROGRAM = (
    "import sys; sys.path.insert(0, {code!r}); "
    "from launcher.node import deployed_files; deployed_files.main()"
)
_MAX_NAMED = 3  # files that a sentence names


class IncompleteTransfer(Exception):
    """Not all of it came, or not as it was sent."""


def digest(path: Path) -> str:
    """Of a file, with an x at its end where it is a program; empty where there is none."""
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
    """The same for a file on whichever host it is seen; no two files have the same."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def compare(folder: str, wanted: dict[str, str], clone: list[int]) -> dict[str, Any]:
    """What a folder lacks of the `wanted` files (digests by name), or why it is to stay as it is.

    `clone`: the identity of the first of them where the frontend has it.
    """
    base = Path(Path.home(), os.path.expanduser(folder))
    present = {name: digest(base / name) for name in wanted}
    if refusal := _refusal(base, present, wanted, clone):
        return {"why": refusal}
    base.mkdir(parents=True, exist_ok=True)
    manifest = _read_manifest(base) or _create_manifest(base)
    code = _RECEIVE_PROGRAM.format(code=str(_CODE_ROOT))
    return {
        "why": "",
        "folder": str(base),
        "mark": manifest["mark"],
        "missing": [name for name in wanted if present[name] != wanted[name]],
        "settled": manifest["files"] == {name: [each] for name, each in wanted.items()},
        "receiver": [sys.executable, "-ESc", code, str(base)],
        "nvidia": bool(shutil.which("nvidia-smi")),
    }


def _refusal(
    base: Path, present: Mapping[str, str], wanted: Mapping[str, str], clone: list[int]
) -> str:
    if clone and file_identity(base / next(iter(wanted))) == clone:
        return f"{base} is the very clone that you start from: it needs no --deploy"
    if (base / ".git").exists():
        return (
            f"{base} is a git clone, which --deploy leaves alone: `git pull` there and start "
            f"without it, or name another workdir in the CSV"
        )
    if base in (Path.home(), Path("/")):
        return f"{base} is no folder for a project alone: name another workdir in the CSV"
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
        f"{base} has files of its own, or changed since they came, in the way "
        f"({', '.join(own[:_MAX_NAMED])}{more}): move them away, or name another workdir in the CSV"
    )


def _without_mode(digest: str) -> str:
    return digest.removesuffix("x")


def _read_manifest(base: Path) -> dict[str, Any]:
    """What came before; empty where nothing ever did."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((base / MANIFEST).read_text())
    return {}


def _create_manifest(base: Path) -> dict[str, Any]:
    """A new list, or that of whoever was first: hosts may share the folder."""
    work = base / f"{MANIFEST}.{secrets.token_hex(4)}"
    work.write_text(json.dumps({"mark": secrets.token_hex(8), "files": {}}))
    try:
        os.link(work, base / MANIFEST)
    except FileExistsError:
        pass
    except OSError:  # there are file systems without links
        work.replace(base / MANIFEST)
    finally:
        work.unlink(missing_ok=True)
    return _read_manifest(base)


# -- receiving


def receive(base: Path, source: IO[bytes]) -> None:
    """Raises IncompleteTransfer, OSError, and what tarfile does; the folder is then as it was."""
    with _work_folder(base) as work, tarfile.open(fileobj=source, mode="r|gz") as archive:
        members = iter(archive)
        first = archive.extractfile(next(members))
        assert first
        header = json.load(first)
        received = {}
        for number, member in enumerate(members):
            received[member.name] = work / str(number)
            _extract(archive, member, received[member.name])
        for name in header["sent"]:
            if name not in received or digest(received[name]) != header["files"][name]:
                raise IncompleteTransfer(
                    f"{name} did not come whole, or changed while it was sent: once more"
                )
        _install(base, header["files"], received)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.issym():
        path.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    assert content
    # Whose umask is stricter than the sender's keeps it so.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode)
    with os.fdopen(handle, "wb") as file:
        shutil.copyfileobj(content, file, _CHUNK)


def _install(base: Path, wanted: dict[str, str], received: dict[str, Path]) -> None:
    """Each in its place; what is wanted no longer is removed."""
    manifest = _read_manifest(base)
    before: dict[str, list[str]] = manifest["files"]
    after = {name: [each] for name, each in wanted.items()}
    # Whatever interrupts the rest, nothing that came is taken for the user's own.
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
    """With what Python compiled of it, and folders that are empty then."""
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
    """An empty folder in it; those that were left behind go, and so does this one."""
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
    """Raises OSError where somebody else holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


class _TimeoutInput:
    """What is sent to this process; not for ever."""

    def read(self, size: int) -> bytes:
        signal.alarm(_SILENT_SECONDS)
        return sys.stdin.buffer.read(size)


def main(arguments: Sequence[str] = sys.argv) -> None:
    """Receives into a folder what comes on the standard input."""

    def give_up(*_: object) -> None:
        raise IncompleteTransfer(f"nothing came for {_SILENT_SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    try:
        receive(Path(arguments[1]), _TimeoutInput())  # type: ignore[arg-type]
    except OSError as error:
        sys.exit(f"{arguments[1]}: {error.strerror or error}")
    except (
        IncompleteTransfer,
        tarfile.TarError,
        EOFError,
        StopIteration,
        ValueError,
        zlib.error,
    ) as error:
        sys.exit(f"{arguments[1]}: {str(error) or 'nothing came'}")
