"""Files of one machine, for copies of them on another: what there is, what differs, their bytes.

Like `local_node`, it is called on this machine, or on another: there it is a program of its own
(`serve`), on a channel of its own, so that a long file holds nobody up. Frames come and go: four
bytes say how long one is, then comes JSON, or part of a file; an empty frame ends a file.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

_CHUNK = 1 << 18
_SILENT_SECONDS = 300  # without a word of the other end, it is gone
# Of a run's folder nobody else needs these; nor hidden ones, which are not finished.
_EXCLUDED = ("lock", "checkpoints/saving")
_DAMAGED = "checkpoints/damaged-"
FOLDER = "/"  # instead of what a link leads to: it is a folder


class Stream(Protocol):
    """One direction of a channel, or both."""

    def read(self, size: int, /) -> bytes:
        """Less at its end alone."""

    def write(self, data: bytes, /) -> Any:
        """All of it."""

    def flush(self) -> None:
        """What was written is on its way."""


FileInfo = list[Any]  # bytes, time of change in ns, inode, what it links to


class LocalFiles:
    """Paths are absolute. Every method raises OSError."""

    def list_files(self, folder: str) -> dict[str, FileInfo]:
        """Every file under a run's folder, by relative path.

        A link to what is in the folder, too, is a link; any other is what it leads to.
        """
        found: dict[str, FileInfo] = {}
        _walk(os.path.realpath(folder), folder, "", frozenset(), found)
        return found

    def file_infos(self, paths: Sequence[str]) -> list[FileInfo | None]:
        """Of each, or that it is not there; links are not followed."""
        return [_file_info(path) for path in paths]

    def digests(self, parts: Sequence[Any]) -> list[str]:
        """SHA-256 of parts of files, each [path, [[offset, bytes], ...]]; empty where none is."""
        return [_digest(path, spans) for path, spans in parts]

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """Parts of files, each [path, inode, offset, bytes], in pieces; an empty one ends each.

        Less comes of a file that was cut meanwhile, and nothing of one that was replaced.
        """
        for path, inode, offset, size in parts:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if os.fstat(file.fileno()).st_ino == inode:
                    yield from _read_chunks(file, offset, size)
            yield b""

    def write(self, path: str, offset: int, chunks: Iterable[bytes]) -> None:
        """To a file that has so many bytes, or at 0 may not be there; it is on the disk then."""
        make_folder(os.path.dirname(path))
        number = os.open(path, os.O_WRONLY | (0 if offset else os.O_CREAT), 0o666)
        with os.fdopen(number, "wb") as file:
            file.seek(offset)
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(number)

    def rename(self, old: str, new: str) -> None:
        """A file replaces what was there; what of another kind is there is put aside."""
        make_folder(os.path.dirname(new))
        if os.path.isdir(new) and not os.path.islink(new):
            move_aside(new)
        os.replace(old, new)

    def move_aside(self, path: str) -> str:
        """Under a name that is free: that name."""
        return move_aside(path)

    def make_link(self, path: str, to: str) -> None:
        """Instead of what is there."""
        work = f"{os.path.dirname(path)}/.{os.path.basename(path)}.coming"
        make_folder(os.path.dirname(path))
        self.remove(work)
        os.symlink(to, work)
        self.rename(work, path)

    def remove(self, path: str) -> None:
        """A file, a link or a folder, if it is there."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.remove(path)


def move_aside(path: str) -> str:
    """Out of the way of what comes, under a name that is free."""
    for number in itertools.count(1):
        free = f"{path}.here" + (f"-{number}" if number > 1 else "")
        if not os.path.lexists(free):
            break
    os.rename(path, free)
    return free


def make_folder(folder: str) -> None:
    """Makes a folder; a file in its place, or in that of one above it, is put aside."""
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
    except FileNotFoundError:  # not yet, or no longer
        return
    above = above | {(own.st_dev, own.st_ino)}
    for entry in entries:
        name = f"{under}{entry.name}"
        if entry.name.startswith(".") or name in _EXCLUDED or name.startswith(_DAMAGED):
            continue
        with contextlib.suppress(OSError):  # it has just gone, or links to nothing
            status = entry.stat()
            if entry.is_symlink() and (to := _target_inside(base, entry.path, name)):
                found[name] = [0, 0, 0, os.path.relpath(to, os.path.dirname(name) or ".")]
            elif stat.S_ISREG(status.st_mode):
                found[name] = [status.st_size, status.st_mtime_ns, status.st_ino, ""]
            elif stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in above:
                _walk(base, entry.path, f"{name}/", above, found)


def _target_inside(base: str, path: str, name: str) -> str:
    """What a link leads to, relative to the folder; empty where that is outside."""
    real, text = os.path.realpath(path), os.readlink(path)
    target = os.path.normpath(os.path.join(os.path.dirname(name), text))
    if (
        target[0] != "/" and os.path.realpath(os.path.join(base, target)) == real
    ):  # by folders that are links, too
        to = target
    else:
        to = os.path.relpath(real, base)
    return "" if to == "." or to.startswith(("..", "/")) else to


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
    """Less, where it ends before."""
    file.seek(offset)
    left = size
    while left > 0 and (piece := file.read(min(left, _CHUNK))):
        left -= len(piece)
        yield piece


# -- over a channel


def send_frame(out: Stream, data: bytes) -> None:
    """A frame; who writes the last of several flushes."""
    out.write(struct.pack(">I", len(data)) + data)


def receive_frame(source: Stream) -> bytes:
    """A frame. Raises EOFError."""
    head = source.read(4)
    if len(head) < 4:
        raise EOFError
    size = struct.unpack(">I", head)[0]
    data = source.read(size) if size else b""
    if len(data) < size:
        raise EOFError
    return data


def receive_chunks(source: Stream) -> Iterator[bytes]:
    """Parts of one file."""
    while piece := receive_frame(source):
        yield piece


def serve(source: Stream, out: Stream) -> None:
    """Answers calls of `LocalFiles`, to the end of the channel."""
    files = LocalFiles()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            call = json.loads(receive_frame(source))
            op, arguments = call["op"], call["said"]
            if op == "read":
                for chunk in files.read(*arguments):
                    send_frame(out, chunk)
            else:
                send_frame(out, json.dumps(_answer_call(files, op, arguments, source)).encode())
            out.flush()


def _answer_call(
    files: LocalFiles, op: str, arguments: list[Any], source: Stream
) -> dict[str, Any]:
    chunks: Iterator[bytes] = iter(())
    if op == "write":
        arguments = [*arguments, chunks := receive_chunks(source)]
    try:
        method: Callable[..., Any] = getattr(files, op)
        return {"result": method(*arguments)}
    except OSError as error:
        for _ in chunks:  # what comes all the same is not the next call
            pass
        return {"error": f"{error.filename}: {error.strerror}" if error.filename else str(error)}


class _TimeoutStream:
    """A file whose use says that the other end is there; its silence ends the process."""

    def __init__(self, file: Stream):
        self._file = file

    def read(self, size: int) -> bytes:
        signal.alarm(_SILENT_SECONDS)
        return self._file.read(size)

    def write(self, data: bytes) -> int:
        signal.alarm(_SILENT_SECONDS)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def main() -> None:
    """Serves on its input and output."""
    serve(_TimeoutStream(sys.stdin.buffer), _TimeoutStream(sys.stdout.buffer))


def serve_command() -> list[str]:
    """That serves on this machine; this package may be in a bundle."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        f"import sys; sys.path.insert(0, {package!r}); from launcher.node import file_service; "
        f"file_service.main()"
    )
    return [sys.executable, "-ESc", code]
