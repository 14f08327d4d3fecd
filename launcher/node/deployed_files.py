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

LIST = ".deployed.json"
_CODE = Path(__file__).resolve().parents[2]  # the project's clone, or what was sent of it
_WORK = ".deploying-"
_PIECE = 1 << 20
_SILENT_SECONDS = 60  # after which nobody sends any more
_RECEIVE = (
    "import sys; sys.path.insert(0, {code!r}); "
    "from launcher.node import deployed_files; deployed_files.main()"
)
_NAMED = 3  # files that a sentence names


class Torn(Exception):
    """Not all of it came, or not as it was sent."""


def digest(path: Path) -> str:
    """Of a file, with an x at its end where it is a program; empty where there is none."""
    try:
        about = path.lstat()
    except OSError:
        return ""
    if stat.S_ISLNK(about.st_mode):
        return f"-> {os.readlink(path)}"
    if not stat.S_ISREG(about.st_mode):
        return "no file"
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.hexdigest() + ("x" if about.st_mode & stat.S_IXUSR else "")


def identity(path: Path) -> list[int]:
    """The same for a file on whichever host it is seen; no two files have the same."""
    try:
        about = path.stat()
    except OSError:
        return []
    return [about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def compare(folder: str, wanted: dict[str, str], clone: list[int]) -> dict[str, Any]:
    """What a folder lacks of the `wanted` files (digests by name), or why it is to stay as it is.

    `clone`: the identity of the first of them where the frontend has it.
    """
    base = Path(Path.home(), os.path.expanduser(folder))
    there = {name: digest(base / name) for name in wanted}
    if why := _why_not(base, there, wanted, clone):
        return {"why": why}
    base.mkdir(parents=True, exist_ok=True)
    known = _listed(base) or _begun(base)
    code = _RECEIVE.format(code=str(_CODE))
    return {
        "why": "",
        "folder": str(base),
        "mark": known["mark"],
        "missing": [name for name in wanted if there[name] != wanted[name]],
        "settled": known["files"] == {name: [each] for name, each in wanted.items()},
        "receiver": [sys.executable, "-ESc", code, str(base)],
        "nvidia": bool(shutil.which("nvidia-smi")),
    }


def _why_not(
    base: Path, there: Mapping[str, str], wanted: Mapping[str, str], clone: list[int]
) -> str:
    if clone and identity(base / next(iter(wanted))) == clone:
        return f"{base} is the very clone that you start from: it needs no --deploy"
    if (base / ".git").exists():
        return (
            f"{base} is a git clone, which --deploy leaves alone: `git pull` there and start "
            f"without it, or name another workdir in the CSV"
        )
    if base in (Path.home(), Path("/")):
        return f"{base} is no folder for a project alone: name another workdir in the CSV"
    brought = _listed(base).get("files", {})
    own = [
        name
        for name, now in there.items()
        if now and _content(now) not in map(_content, (*brought.get(name, []), wanted[name]))
    ]
    if not own:
        return ""
    more = f" and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
    return (
        f"{base} has files of its own, or changed since they came, in the way "
        f"({', '.join(own[:_NAMED])}{more}): move them away, or name another workdir in the CSV"
    )


def _content(digest: str) -> str:
    return digest.removesuffix("x")


def _listed(base: Path) -> dict[str, Any]:
    """What came before; empty where nothing ever did."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((base / LIST).read_text())
    return {}


def _begun(base: Path) -> dict[str, Any]:
    """A new list, or that of whoever was first: hosts may share the folder."""
    work = base / f"{LIST}.{secrets.token_hex(4)}"
    work.write_text(json.dumps({"mark": secrets.token_hex(8), "files": {}}))
    try:
        os.link(work, base / LIST)
    except FileExistsError:
        pass
    except OSError:  # there are file systems without links
        work.replace(base / LIST)
    finally:
        work.unlink(missing_ok=True)
    return _listed(base)


# -- receiving


def receive(base: Path, source: IO[bytes]) -> None:
    """Raises Torn, OSError, and what tarfile does; the folder is then as it was."""
    with _workplace(base) as work, tarfile.open(fileobj=source, mode="r|gz") as archive:
        members = iter(archive)
        first = archive.extractfile(next(members))
        assert first
        told = json.load(first)
        came = {}
        for number, member in enumerate(members):
            came[member.name] = work / str(number)
            _store(archive, member, came[member.name])
        for name in told["sent"]:
            if name not in came or digest(came[name]) != told["files"][name]:
                raise Torn(f"{name} did not come whole, or changed while it was sent: once more")
        _settle(base, told["files"], came)


def _store(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.issym():
        path.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    assert content
    # Whose umask is stricter than the sender's keeps it so.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode)
    with os.fdopen(handle, "wb") as file:
        shutil.copyfileobj(content, file, _PIECE)


def _settle(base: Path, wanted: dict[str, str], came: dict[str, Path]) -> None:
    """Each in its place; what is wanted no longer is removed."""
    known = _listed(base)
    before: dict[str, list[str]] = known["files"]
    after = {name: [each] for name, each in wanted.items()}
    # Whatever interrupts the rest, nothing that came is taken for the user's own.
    both = {name: before.get(name, []) + after.get(name, []) for name in before | after}
    _write(base, known | {"files": both})
    for name in before.keys() - wanted.keys():
        if _content(digest(base / name)) in map(_content, before[name]):
            _remove(base, name)
    for name, work in came.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        work.replace(path)
    _write(base, known | {"files": after})


def _remove(base: Path, name: str) -> None:
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


def _write(base: Path, known: dict[str, Any]) -> None:
    work = base / f"{LIST}.{secrets.token_hex(4)}"
    try:
        work.write_text(json.dumps(known))
        work.replace(base / LIST)
    finally:
        work.unlink(missing_ok=True)


@contextlib.contextmanager
def _workplace(base: Path) -> Iterator[Path]:
    """An empty folder in it; those that were left behind go, and so does this one."""
    for left in base.glob(f"{_WORK}*"):
        with contextlib.suppress(OSError), _held(left):
            shutil.rmtree(left)
    work = Path(tempfile.mkdtemp(prefix=_WORK, dir=base))
    try:
        with _held(work):
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Raises OSError where somebody else holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


class _Patient:
    """What is sent to this process; not for ever."""

    def read(self, size: int) -> bytes:
        signal.alarm(_SILENT_SECONDS)
        return sys.stdin.buffer.read(size)


def main(arguments: Sequence[str] = sys.argv) -> None:
    """Receives into a folder what comes on the standard input."""

    def give_up(*_: object) -> None:
        raise Torn(f"nothing came for {_SILENT_SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    try:
        receive(Path(arguments[1]), _Patient())  # type: ignore[arg-type]
    except OSError as error:
        sys.exit(f"{arguments[1]}: {error.strerror or error}")
    except (Torn, tarfile.TarError, EOFError, StopIteration, ValueError, zlib.error) as error:
        sys.exit(f"{arguments[1]}: {str(error) or 'nothing came'}")
