"""Access to the files of one machine, so that a frontend can copy them: lists, digests, contents.

On the frontend's own machine it is called directly. On another host it is a program of its own
(`serve`) with an SSH channel of its own, so that a long file delays no other call. Both sides send
frames: a length of four bytes, then JSON or a piece of a file; an empty frame ends a file.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

from launcher.supervise import deployed_files

_CHUNK = 1 << 18
_MAX_FRAME = 1 << 26  # bytes; the list of 100,000 files has some 10 MB
_SILENT_SECONDS = 60  # seconds without data, or without a call, before the program exits
# Files of a run's folder that are not copied; nor are hidden ones, which are incomplete.
# "own" is what each learner saves for itself, such as its replay: large, another one with each
# checkpoint, and of use only to that learner on its own host.
_EXCLUDED = ("lock", "checkpoints/saving", "own")
_DAMAGED = "checkpoints/damaged-"
FOLDER = "/"  # stands in for a link's target: this is a folder


class Stream(Protocol):
    """A channel, for one direction or for both."""

    def read(self, size: int, /) -> bytes:
        """Read `size` bytes; fewer only at the end."""

    def write(self, data: bytes, /) -> Any:
        """Write all of `data`."""

    def flush(self) -> None:
        """Send what was written."""


FileInfo = list[Any]  # [bytes, time of change in ns, inode, target of the link]


class LocalFiles:
    """The files of this machine. Paths are absolute; every method can raise OSError."""

    def list_files(self, folder: str) -> dict[str, FileInfo]:
        """Return the files under a run's folder that copies of it have, by relative path.

        A link to something in the folder that is not hidden is listed as a link; any other link as
        its target.
        """
        found: dict[str, FileInfo] = {}
        _walk(os.path.realpath(folder), folder, "", frozenset(), found)
        return found

    def file_infos(self, paths: Sequence[str]) -> list[FileInfo | None]:
        """Return the information on each path, None if it does not exist; follow no links."""
        return [_file_info(path) for path in paths]

    def leading_out(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Return the paths that lead out of a folder, through links or by `..`."""
        base = os.path.realpath(folder)
        return [
            path for path in paths if os.path.commonpath([base, os.path.realpath(path)]) != base
        ]

    def digests(self, parts: Sequence[Any]) -> list[str]:
        """Return the SHA-256 of parts of files, each [path, [[offset, bytes], ...]].

        It is empty for a part that does not exist.
        """
        return [_digest(path, spans) for path, spans in parts]

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """Yield parts of files, each [path, inode, offset, bytes], in pieces; an empty one ends it.

        A file that was truncated since yields less, one that was replaced nothing.
        """
        for path, inode, offset, size in parts:
            # It may be gone, or its file system fail: the reader gets less than it asked for.
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if os.fstat(file.fileno()).st_ino == inode:
                    yield from _read_chunks(file, offset, size)
            yield b""

    def write(self, parts: Sequence[Any], chunks: Iterator[bytes], durable: bool = True) -> None:
        """Write parts of files, each [path, offset], from pieces; an empty one ends a part.

        If `durable`, each is on the disk before the next one begins. At offset 0 a file is created
        if it does not exist.
        """
        for path, offset in parts:
            make_folder(os.path.dirname(path))
            try:
                number = os.open(path, os.O_WRONLY | (0 if offset else os.O_CREAT), 0o666)
                with os.fdopen(number, "wb") as file:
                    file.seek(offset)
                    while chunk := next(chunks, b""):
                        file.write(chunk)
                    file.flush()
                    if durable:
                        os.fsync(number)
            except OSError as error:  # that of a full disk names no file
                raise OSError(error.errno, error.strerror, path) from None

    compare_deployed = staticmethod(deployed_files.compare)
    install_deployed = staticmethod(deployed_files.install)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; it replaces a file, while a folder in its place is moved aside."""
        make_folder(os.path.dirname(new))
        if os.path.isdir(new) and not os.path.islink(new):
            move_aside(new)
        os.replace(old, new)

    def move_aside(self, path: str) -> str:
        """Rename a path to a free name; return that name."""
        return move_aside(path)

    def make_link(self, path: str, to: str) -> None:
        """Make a link that replaces what is at `path`."""
        work = f"{os.path.dirname(path)}/.{os.path.basename(path)}.coming"
        make_folder(os.path.dirname(path))
        self.remove(work)
        os.symlink(to, work)
        self.rename(work, path)

    def remove(self, path: str) -> None:
        """Remove a file, a link or a folder, if it exists."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it does not exist
                os.remove(path)


def move_aside(path: str) -> str:
    """Rename a path to a free name, so that a download can take its place; return the name."""
    for number in itertools.count(1):
        free = f"{path}.here" + (f"-{number}" if number > 1 else "")
        if not os.path.lexists(free):
            break
    os.rename(path, free)
    return free


def make_folder(folder: str) -> None:
    """Make a folder and those above it; move files that are in their places aside."""
    existing = folder
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        move_aside(existing)
    os.makedirs(folder, exist_ok=True)


def _walk(
    base: str,
    folder: str,
    under: str,
    above: frozenset[tuple[int, int]],
    found: dict[str, FileInfo],
) -> None:
    try:
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
            own = os.stat(folder)
    except FileNotFoundError:  # it does not exist yet, or was removed
        return
    above = above | {(own.st_dev, own.st_ino)}
    for entry in entries:
        name = f"{under}{entry.name}"
        if entry.name.startswith(".") or name in _EXCLUDED or name.startswith(_DAMAGED):
            continue
        with contextlib.suppress(OSError):  # it was just removed, or is a broken link
            status = entry.stat()
            if entry.is_symlink() and (to := _target_inside(base, entry.path, name)):
                found[name] = [0, 0, 0, os.path.relpath(to, os.path.dirname(name) or ".")]
            elif stat.S_ISREG(status.st_mode):
                found[name] = [status.st_size, status.st_mtime_ns, status.st_ino, ""]
            elif stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in above:
                _walk(base, entry.path, f"{name}/", above, found)


def _target_inside(base: str, path: str, name: str) -> str:
    """Return the target of a link, relative to the folder; empty if it is outside or hidden."""
    real, text = os.path.realpath(path), os.readlink(path)
    target = os.path.normpath(os.path.join(os.path.dirname(name), text))
    if (
        target[0] != "/" and os.path.realpath(os.path.join(base, target)) == real
    ):  # also if folders on the way are links
        to = target
    else:
        to = os.path.relpath(real, base)
    return "" if to[0] == "/" or any(part[0] == "." for part in to.split("/")) else to


def _file_info(path: str) -> FileInfo | None:
    try:
        status = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        link = FOLDER
    return [status.st_size, status.st_mtime_ns, status.st_ino, link]


def _digest(path: str, spans: Sequence[tuple[int, int]]) -> str:
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for offset, size in spans:
                count = 0
                for chunk in _read_chunks(file, offset, size):
                    found.update(chunk)
                    count += len(chunk)
                if count < size:
                    return ""
    except OSError:
        return ""
    return found.hexdigest()


def _read_chunks(file: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    """Yield `size` bytes from `offset` on in pieces; fewer if the file ends earlier."""
    file.seek(offset)
    left = size
    while left > 0 and (piece := file.read(min(left, _CHUNK))):
        left -= len(piece)
        yield piece


# -- over a channel


def frame(data: bytes) -> bytes:
    """Return a frame with this content."""
    return struct.pack(">I", len(data)) + data


def receive_frame(source: Stream) -> bytes:
    """Return the content of the next frame.

    Raises EOFError at the end of the channel, and ValueError for a frame that is too long: the
    other end must not fill this machine's memory.
    """
    head = source.read(4)
    if len(head) < 4:
        raise EOFError
    size = struct.unpack(">I", head)[0]
    if size > _MAX_FRAME:
        raise ValueError(f"it sent a message of {size:,} bytes; at most {_MAX_FRAME:,} are read")
    data = source.read(size) if size else b""
    if len(data) < size:
        raise EOFError
    return data


def receive_parts(source: Stream, count: int) -> Iterator[bytes]:
    """Yield the pieces of so many parts of files; an empty one ends each."""
    for _ in range(count):
        while piece := receive_frame(source):
            yield piece
        yield b""


def serve(source: Stream, out: Stream) -> None:
    """Answer calls of `LocalFiles` until the end of the channel."""
    files = LocalFiles()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the frontend has gone
        while True:
            call = json.loads(receive_frame(source))
            op, arguments = call["op"], call["said"]
            if op == "read":
                for chunk in files.read(*arguments):
                    out.write(frame(chunk))
                out.flush()
                continue
            sent = receive_parts(source, len(arguments[0])) if op == "write" else iter(())
            if op == "write":
                arguments.insert(1, sent)
            answer = _answer_call(files, op, arguments)
            out.write(frame(json.dumps(answer).encode()))
            out.flush()
            for _ in sent:  # skip what an error has left, which is not the next call
                pass


def _answer_call(files: LocalFiles, op: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        method: Callable[..., Any] = getattr(files, op)
        return {"result": method(*arguments)}
    except OSError as error:
        return {"error": f"{error.filename}: {error.strerror}" if error.filename else str(error)}


class _TimeoutStream:
    """A file with a timeout: EOFError is raised if the other end is silent for too long."""

    def __init__(self, file: Stream):
        self._file = file

    def read(self, size: int) -> bytes:
        signal.alarm(_SILENT_SECONDS)
        data = self._file.read(size)
        signal.alarm(0)
        return data

    def write(self, data: bytes) -> int:
        signal.alarm(_SILENT_SECONDS)
        written = self._file.write(data)
        signal.alarm(0)
        return written

    def flush(self) -> None:
        self._file.flush()


def _give_up(*_: object) -> None:
    """End what is being received; the exit follows."""
    raise EOFError


def main() -> None:
    """Serve on the standard input and output."""
    signal.signal(signal.SIGALRM, _give_up)
    serve(_TimeoutStream(sys.stdin.buffer), _TimeoutStream(sys.stdout.buffer))


if __name__ == "__main__":
    main()
