"""What a supervisor of learners knows of other hosts' credentials: in its memory, nowhere else.

The frontend gives them through a socket in the process's folder, which is its owner's alone; the
agent that mpirun calls for each other host asks for that host's (`mpirun_ssh`).

    {"give": {host: credential, ...}}   is answered by {}
    {"want": host}                      is answered by its credential, or by {}
"""

import contextlib
import json
import os
import select
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SECONDS = 10.0
_SOCKET_NAME = "keys"


class Keyring:
    """The credentials that one supervisor holds."""

    def __init__(self, folder: Path):
        """Listens in `folder`."""
        self._credentials: dict[str, Any] = {}
        (folder / _SOCKET_NAME).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_path(folder) as path:
            self._socket.bind(path)
        self._socket.listen(64)

    def add(self, credentials: dict[str, Any]) -> None:
        """By host."""
        self._credentials |= credentials

    def __bool__(self) -> bool:
        return bool(self._credentials)

    def serve(self, seconds: float = 0.0) -> None:
        """Whoever comes within so many seconds."""
        while select.select([self._socket], [], [], seconds)[0]:
            connection, _ = self._socket.accept()
            with contextlib.suppress(OSError, ValueError), connection:
                connection.settimeout(_SECONDS)
                message = _receive(connection)
                self.add(message.get("give", {}))
                connection.sendall(
                    json.dumps(self._credentials.get(message.get("want", ""), {})).encode()
                )
            seconds = 0.0


def write_agent_script(folder: Path, command: list[str]) -> Path:
    """The program that mpirun calls for each other host."""
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\nexec {shlex.join([*command, str(folder)])} "$@"\n')
    agent.chmod(0o700)
    return agent


def send_credentials(folder: Path, credentials: dict[str, Any]) -> None:
    """To the supervisor of `folder`. Raises OSError."""
    _call(folder, {"give": credentials})


def request_credential(folder: Path, host: str) -> dict[str, Any]:
    """A host's credential, empty where there is none. Raises OSError."""
    return _call(folder, {"want": host})


def _call(folder: Path, message: dict[str, Any]) -> dict[str, Any]:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        _short_path(folder) as path,
    ):
        connection.settimeout(_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps(message).encode())
        connection.shutdown(socket.SHUT_WR)
        return _receive(connection)


def _receive(connection: socket.socket) -> dict[str, Any]:
    content = b""
    while piece := connection.recv(1 << 16):
        content += piece
    return json.loads(content)


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """The socket's path; one of more than 107 characters could not be used."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET_NAME}"
    finally:
        os.close(descriptor)
