"""Other hosts' credentials, which the learners' supervisor keeps in its memory and nowhere else.

The frontend sends them through a socket in the process's folder, which only its owner can open. The
agent that mpirun calls for each other host (`mpirun_ssh`) requests the credential of that host.

    {"give": {host: credential, ...}}   the reply is {}
    {"want": host}                      the reply is its credential, or {}
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

_SECONDS = 10.0  # seconds until a connection times out
_SOCKET_NAME = "keys"


class Keyring:
    """The credentials that one supervisor holds."""

    def __init__(self, folder: Path):
        """Listen on a socket in `folder`."""
        self._credentials: dict[str, Any] = {}
        (folder / _SOCKET_NAME).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_path(folder) as path:
            self._socket.bind(path)
        self._socket.listen(64)

    def add(self, credentials: dict[str, Any]) -> None:
        """Add credentials by host."""
        self._credentials |= credentials

    def __bool__(self) -> bool:
        return bool(self._credentials)

    def serve(self, seconds: float = 0.0) -> None:
        """Answer all connections that arrive within `seconds`."""
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
    """Write the program that mpirun calls for each other host; return its path."""
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\nexec {shlex.join([*command, str(folder)])} "$@"\n')
    agent.chmod(0o700)
    return agent


def send_credentials(folder: Path, credentials: dict[str, Any]) -> None:
    """Send credentials to the supervisor of `folder`. Raises OSError."""
    _call(folder, {"give": credentials})


def request_credential(folder: Path, host: str) -> dict[str, Any]:
    """Return a host's credential, empty if there is none. Raises OSError."""
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
    """Provide a short path of the socket, since a path of over 107 characters cannot be used."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET_NAME}"
    finally:
        os.close(descriptor)
