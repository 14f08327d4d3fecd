"""Access to the files of another host, which `supervise.file_service` serves."""

import contextlib
import io
import json
import os
import shlex
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from launcher.hosts.hosts import Hosts
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.supervise.file_service import (
    FileInfo,
    Stream,
    receive_chunks,
    receive_frame,
    send_frame,
)

_ANSWER_SECONDS = 120.0  # timeout for an answer: a digest of a long file takes a while
_IDLE_SECONDS = 30.0  # seconds after which a channel is not used again: its program may have ended
_CHUNK = 1 << 18


class FileStore(Protocol):
    """The files of one machine; `launcher.supervise.file_service` documents each call."""

    def list_files(self, folder: str) -> dict[str, FileInfo]:
        """List every file below a folder, by its relative path."""

    def file_infos(self, paths: Sequence[str]) -> list[FileInfo | None]:
        """Return the `FileInfo` of each path; None if it does not exist."""

    def leading_out(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Return the paths that lead out of a folder, as far as that is refused."""

    def digests(self, parts: Sequence[Any]) -> list[str]:
        """Return the SHA-256 of parts of files."""

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """Read parts of files: yield their chunks, and an empty one after each part."""

    def write(self, path: str, offset: int, chunks: Iterable[bytes]) -> None:
        """Write to a file, from an offset on."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing one of the new name."""

    def move_aside(self, path: str) -> str:
        """Rename a file to a free name, and return that."""

    def make_link(self, path: str, to: str) -> None:
        """Create a symbolic link, replacing a file of that name."""

    def remove(self, path: str) -> None:
        """Remove a file, a link or a folder."""


class _FrameWriter:
    """A file that sends what is written to it as frames."""

    def __init__(self, out: Stream):
        self._out = out

    def write(self, data: bytes) -> int:
        send_frame(self._out, data)
        return len(data)


class _CountedFile:
    """A file whose bytes are counted as they are read."""

    def __init__(self, file: IO[bytes], on_read: Callable[[int], None]):
        self._file, self._on_read = file, on_read

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._on_read(len(data))
        return data


class _ChannelWriter(io.RawIOBase):
    """The input of the program behind a channel.

    A file of paramiko that is still to be written when the connection is lost prints a traceback
    once it is freed.
    """

    def __init__(self, channel: Any):
        self._channel = channel

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Send all of the data. Raises OSError."""
        self._channel.sendall(bytes(data))
        return len(data)


class RemoteFiles:
    """The files of another host. Its SSH channel is opened on demand, and again once it is lost."""

    def __init__(
        self, host_id: str, open_channel: Callable[[], Any], why_lost: Callable[[], str] = str
    ):
        """Prepare the calls; `open_channel` starts the file service on the host.

        It raises HostUnavailable, OperationFailed. `why_lost` returns why the host's connection is
        lost; empty if it is not.
        """
        self._host_id, self._open_channel, self._why_lost = host_id, open_channel, why_lost
        self._channel: Any = None
        self._used = 0.0  # time.monotonic() of the last call
        self._input: Stream
        self._output: Stream
        self._closed = False
        self._lock = threading.Lock()

    def list_files(self, folder: str) -> dict[str, FileInfo]:
        """See `FileStore`; all calls raise HostUnavailable, OperationFailed."""
        return self._call("list_files", folder)

    def file_infos(self, paths: Sequence[str]) -> list[FileInfo | None]:
        """See `FileStore`."""
        return self._call("file_infos", list(paths)) if paths else []

    def leading_out(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Return none: what is uploaded follows the links that the user made on the host."""
        del folder, paths
        return []

    def digests(self, parts: Sequence[Any]) -> list[str]:
        """See `FileStore`."""
        return self._call("digests", list(parts)) if parts else []

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """See `FileStore`."""
        if not parts:
            return
        with self._exchange():
            self._send_call("read", list(parts))
            for _ in parts:
                yield from receive_chunks(self._input)
                yield b""

    def write(self, path: str, offset: int, chunks: Iterable[bytes]) -> None:
        """See `FileStore`."""
        with self._exchange():
            self._send_call("write", path, offset)
            for chunk in chunks:
                send_frame(self._output, chunk)
            send_frame(self._output, b"")
            self._output.flush()
            answer = json.loads(receive_frame(self._input))
        self._result(answer)

    def unpack(
        self,
        folder: str,
        wanted: Mapping[str, str],
        paths: Mapping[str, Path],
        compress: bool,
        on_read: Callable[[int], None],
    ) -> None:
        """Send files of this machine, by name, into a folder: all of them or none arrive.

        `wanted`: the digests of all files that the folder shall have; others that were deployed are
        removed. `on_read` is called with numbers of bytes.
        """
        with self._exchange():
            self._send_call("unpack", folder, dict(wanted), list(paths))
            frames, mode = _FrameWriter(self._output), "w|gz" if compress else "w|"
            with tarfile.open(fileobj=frames, mode=mode, bufsize=_CHUNK) as archive:  # type: ignore[call-overload]
                for name, path in paths.items():
                    _add_to_archive(archive, name, path, on_read)
            send_frame(self._output, b"")
            self._output.flush()
            answer = json.loads(receive_frame(self._input))
        self._result(answer)

    def rename(self, old: str, new: str) -> None:
        """See `FileStore`."""
        self._call("rename", old, new)

    def move_aside(self, path: str) -> str:
        """See `FileStore`."""
        return self._call("move_aside", path)

    def make_link(self, path: str, to: str) -> None:
        """See `FileStore`."""
        self._call("make_link", path, to)

    def remove(self, path: str) -> None:
        """See `FileStore`."""
        self._call("remove", path)

    def close(self) -> None:
        """Close the channel permanently; a call in progress fails."""
        self._closed = True
        self._close_channel()

    def _call(self, op: str, *arguments: Any) -> Any:
        with self._exchange():
            self._send_call(op, *arguments)
            answer = json.loads(receive_frame(self._input))
        return self._result(answer)

    def _result(self, answer: dict[str, Any]) -> Any:
        if "error" in answer:
            raise OperationFailed(f"{self._host_id}: {answer['error']}")
        return answer["result"]

    def _send_call(self, op: str, *arguments: Any) -> None:
        send_frame(self._output, json.dumps({"op": op, "said": arguments}).encode())
        self._output.flush()

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Open the channel if necessary, and close it if the `with` block fails.

        The rest of an answer that was not read completely would be taken for the next answer.
        """
        with self._lock:
            try:
                if self._closed:
                    raise HostUnavailable(f"{self._host_id}: the transfer was cancelled")
                if time.monotonic() - self._used > _IDLE_SECONDS:
                    self._close_channel()
                if self._channel is None:
                    self._channel = self._open_channel()
                    self._channel.settimeout(_ANSWER_SECONDS)
                    self._input = self._channel.makefile("rb", 1 << 16)
                    self._output = io.BufferedWriter(_ChannelWriter(self._channel), 1 << 16)
                yield
                self._used = time.monotonic()
            except (HostUnavailable, OperationFailed):
                self._close_channel()
                raise
            except (OSError, EOFError, ValueError) as error:
                self._close_channel()
                why = self._why_lost() or str(error) or "the connection was lost"
                raise HostUnavailable(f"{self._host_id}: {why}") from None
            except BaseException:
                self._close_channel()
                raise

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(Exception):
                channel.close()


def open_remote_files(hosts: Hosts, host_id: str) -> RemoteFiles:
    """Return the files of a host other than this machine."""
    node = hosts.remote_nodes[host_id]

    def open_channel() -> Any:
        return node.open_program(shlex.join(node.call("file_service_command")))

    return RemoteFiles(host_id, open_channel, lambda: node.error)


def _add_to_archive(
    archive: tarfile.TarFile, name: str, path: Path, on_read: Callable[[int], None]
) -> None:
    """Add a file or a link. Raises OSError if it shrinks meanwhile.

    If it changes otherwise, the receiver notices by its digest.
    """
    about, status = tarfile.TarInfo(name), path.lstat()
    if stat.S_ISLNK(status.st_mode):
        about.type, about.linkname = tarfile.SYMTYPE, os.readlink(path)
        archive.addfile(about)
        return
    about.size, about.mode = status.st_size, status.st_mode & 0o777
    with path.open("rb") as file:
        archive.addfile(about, _CountedFile(file, on_read))  # type: ignore[arg-type]
