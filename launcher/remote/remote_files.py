"""The files of another host, by the calls that `launcher.node.file_service` answers on this one."""

import contextlib
import json
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from launcher.node.file_service import FileInfo, Stream, receive_chunks, receive_frame, send_frame
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import HostUnavailable, OperationFailed

_SILENT_SECONDS = 120.0  # for an answer: a digest of a long file takes a while


class FileStore(Protocol):
    """Where files come from, or go to; `launcher.node.file_service` says what each call does."""

    def list_files(self, folder: str) -> dict[str, FileInfo]:
        """Every file."""

    def file_infos(self, paths: Sequence[str]) -> list[FileInfo | None]:
        """Of each."""

    def digests(self, parts: Sequence[Any]) -> list[str]:
        """Of parts."""

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """Pieces, an empty one after each part."""

    def write(self, path: str, offset: int, chunks: Iterable[bytes]) -> None:
        """From there on."""

    def rename(self, old: str, new: str) -> None:
        """What was there is replaced."""

    def move_aside(self, path: str) -> str:
        """Its new name."""

    def make_link(self, path: str, to: str) -> None:
        """What was there is replaced."""

    def remove(self, path: str) -> None:
        """Whatever it is."""


class RemoteFiles:
    """One host's files; its channel is opened when it is needed, and again after it was lost."""

    def __init__(self, host_id: str, open_channel: Callable[[], Any]):
        """`open_channel`: to a program that serves; raises HostUnavailable, OperationFailed."""
        self._host_id, self._open_channel = host_id, open_channel
        self._channel: Any = None
        self._input: Stream
        self._output: Stream
        self._closed = False
        self._lock = threading.Lock()

    def list_files(self, folder: str) -> dict[str, FileInfo]:
        """As `FileStore` says, like all that follow. Raises HostUnavailable, OperationFailed."""
        return self._call("list_files", folder)

    def file_infos(self, paths: Sequence[str]) -> list[FileInfo | None]:
        """As `FileStore` says."""
        return self._call("file_infos", list(paths)) if paths else []

    def digests(self, parts: Sequence[Any]) -> list[str]:
        """As `FileStore` says."""
        return self._call("digests", list(parts)) if parts else []

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """As `FileStore` says."""
        if not parts:
            return
        with self._exchange():
            self._send_call("read", list(parts))
            for _ in parts:
                yield from receive_chunks(self._input)
                yield b""

    def write(self, path: str, offset: int, chunks: Iterable[bytes]) -> None:
        """As `FileStore` says."""
        with self._exchange():
            self._send_call("write", path, offset)
            for chunk in chunks:
                send_frame(self._output, chunk)
            send_frame(self._output, b"")
            self._output.flush()
            answer = json.loads(receive_frame(self._input))
        self._result(answer)

    def rename(self, old: str, new: str) -> None:
        """As `FileStore` says."""
        self._call("rename", old, new)

    def move_aside(self, path: str) -> str:
        """As `FileStore` says."""
        return self._call("move_aside", path)

    def make_link(self, path: str, to: str) -> None:
        """As `FileStore` says."""
        self._call("make_link", path, to)

    def remove(self, path: str) -> None:
        """As `FileStore` says."""
        self._call("remove", path)

    def close(self) -> None:
        """For good; a call that is under way fails."""
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
        """What is not heard to its end would be taken for the next answer: then it hangs up."""
        with self._lock:
            try:
                if self._closed:
                    raise HostUnavailable(f"{self._host_id}: it was hung up")
                if self._channel is None:
                    self._channel = self._open_channel()
                    self._channel.settimeout(_SILENT_SECONDS)
                    self._input = self._channel.makefile("rb", 1 << 16)
                    self._output = self._channel.makefile("wb", 1 << 16)
                yield
            except (HostUnavailable, OperationFailed):
                self._close_channel()
                raise
            except (OSError, EOFError, ValueError) as error:
                self._close_channel()
                why = str(error) or "the connection is lost"
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
    """Of a run's host other than this."""

    def open_channel() -> Any:
        return hosts.remote_nodes[host_id].open_program(
            shlex.join(hosts.call(host_id, "file_service_command"))
        )

    return RemoteFiles(host_id, open_channel)
