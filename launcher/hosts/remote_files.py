"""Access to the files of another host, which `supervise.file_service` serves."""

import contextlib
import json
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.hosts.remote_node import HostUnavailable, OperationFailed, RemoteNode
from launcher.supervise.file_service import (
    FileInfo,
    LocalFiles,
    Stream,
    frame,
    receive_frame,
    receive_parts,
)
from launcher.supervise.json_files import parse_object

_ANSWER_SECONDS = 600.0  # timeout for an answer: digests of gigabytes take a while
_SEND_BYTES = 1 << 16  # bytes that are sent together: small files share SSH's messages
_IDLE_SECONDS = 30.0  # seconds after which a channel is not used again: its program may have ended


class RemoteFiles:
    """The files of another host. Its SSH channel is opened on demand, and again once it is lost."""

    def __init__(self, node: RemoteNode):
        """Prepare the calls; the first of them starts the file service on the host."""
        self._node = node
        self._channel: Any = None
        self._used = 0.0  # time.monotonic() of the last call
        self._input: Stream
        self._closed = False
        self._lock = threading.Lock()

    def list_files(self, folder: str) -> dict[str, FileInfo]:
        """See `LocalFiles`; all calls raise HostUnavailable, OperationFailed."""
        return self._call("list_files", folder)

    def file_infos(self, paths: Sequence[str]) -> list[FileInfo | None]:
        """See `LocalFiles`."""
        return self._call("file_infos", list(paths)) if paths else []

    def leading_out(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Return none: what is uploaded follows the links that the user made on the host."""
        del folder, paths
        return []

    def digests(self, parts: Sequence[Any]) -> list[str]:
        """See `LocalFiles`."""
        return self._call("digests", list(parts)) if parts else []

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """See `LocalFiles`."""
        if not parts:
            return
        with self._exchange():
            self._send_call("read", list(parts))
            for path, _, _, size in parts:
                received = 0
                for chunk in receive_parts(self._input, 1):
                    received += len(chunk)
                    if received > size:  # it must not fill this machine's memory or disk
                        raise ValueError(f"it sent more of {path} than was requested")
                    yield chunk

    def write(self, parts: Sequence[Any], chunks: Iterator[bytes], durable: bool = True) -> None:
        """See `LocalFiles`."""
        with self._exchange():
            self._send_call("write", list(parts), durable)
            unsent = b""
            for chunk in chunks:
                unsent += frame(chunk)
                if len(unsent) > _SEND_BYTES:
                    self._channel.sendall(unsent)
                    unsent = b""
                if self._channel.recv_ready():  # an error, such as a full disk
                    break
            self._channel.sendall(unsent)
            self._result(self._receive_answer())

    def compare_deployed(
        self, folder: str, wanted: dict[str, str], clone: list[int]
    ) -> dict[str, Any]:
        """See `LocalFiles`."""
        return self._call("compare_deployed", folder, wanted, clone)

    def install_deployed(self, folder: str, wanted: dict[str, str], modes: dict[str, int]) -> None:
        """See `LocalFiles`."""
        self._call("install_deployed", folder, wanted, modes)

    def rename(self, old: str, new: str) -> None:
        """See `LocalFiles`."""
        self._call("rename", old, new)

    def move_aside(self, path: str) -> str:
        """See `LocalFiles`."""
        return self._call("move_aside", path)

    def make_link(self, path: str, to: str) -> None:
        """See `LocalFiles`."""
        self._call("make_link", path, to)

    def remove(self, path: str) -> None:
        """See `LocalFiles`."""
        self._call("remove", path)

    def close(self) -> None:
        """Close the channel permanently; a call in progress fails."""
        self._closed = True
        self._close_channel()

    def _call(self, op: str, *arguments: Any) -> Any:
        with self._exchange():
            self._send_call(op, *arguments)
            answer = self._receive_answer()
        return self._result(answer)

    def _receive_answer(self) -> dict[str, Any]:
        """Return the answer to a call. Raises ValueError for what is none: a host may lie."""
        answer = parse_object(receive_frame(self._input))
        if not answer.keys() & {"result", "error"}:
            raise ValueError("its answer has another form")
        return answer

    def _result(self, answer: dict[str, Any]) -> Any:
        if "error" in answer:
            raise OperationFailed(f"{self._node.host_id}: {answer['error']}")
        return answer["result"]

    def _send_call(self, op: str, *arguments: Any) -> None:
        self._channel.sendall(frame(json.dumps({"op": op, "said": arguments}).encode()))

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Open the channel if necessary, and close it if the `with` block fails.

        The rest of an answer that was not read completely would be taken for the next answer.
        """
        with self._lock:
            try:
                if self._closed:
                    raise HostUnavailable(f"{self._node.host_id}: the transfer was cancelled")
                if time.monotonic() - self._used > _IDLE_SECONDS:
                    self._close_channel()
                if self._channel is None:
                    command = shlex.join(self._node.call("file_service_command"))
                    self._channel = self._node.open_program(command)
                    self._channel.settimeout(_ANSWER_SECONDS)
                    self._input = self._channel.makefile("rb", 1 << 16)
                yield
                self._used = time.monotonic()
            except BaseException as error:
                self._close_channel()
                if not isinstance(error, (OSError, EOFError, ValueError)):
                    raise
                why = self._node.error or str(error) or "the connection was lost"
                raise HostUnavailable(f"{self._node.host_id}: {why}") from None

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(Exception):  # paramiko's, of a connection that is lost
                channel.close()


FileStore = LocalFiles | RemoteFiles
