"""What a supervisor of learners knows of other hosts' credentials: in its memory, nowhere else.

The frontend gives them through a socket in the process's folder, which is its owner's alone; the
agent that mpirun calls for each other host asks for that host's (`agent`).

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
_NAME = "keys"


class Keyring:
    """Of one supervisor."""

    def __init__(self, folder: Path):
        """Listens in `folder`."""
        self._known: dict[str, Any] = {}
        (folder / _NAME).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(folder) as path:
            self._socket.bind(path)
        self._socket.listen(64)

    def take(self, credentials: dict[str, Any]) -> None:
        """By host."""
        self._known |= credentials

    def __bool__(self) -> bool:
        return bool(self._known)

    def answer(self, seconds: float = 0.0) -> None:
        """Whoever comes within so many seconds."""
        while select.select([self._socket], [], [], seconds)[0]:
            came, _ = self._socket.accept()
            with contextlib.suppress(OSError, ValueError), came:
                came.settimeout(_SECONDS)
                asked = _received(came)
                self.take(asked.get("give", {}))
                came.sendall(json.dumps(self._known.get(asked.get("want", ""), {})).encode())
            seconds = 0.0


def write_agent(folder: Path, command: list[str]) -> Path:
    """The program that mpirun calls for each other host."""
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\nexec {shlex.join([*command, str(folder)])} "$@"\n')
    agent.chmod(0o700)
    return agent


def give(folder: Path, credentials: dict[str, Any]) -> None:
    """To the supervisor of `folder`. Raises OSError."""
    _told(folder, {"give": credentials})


def want(folder: Path, host: str) -> dict[str, Any]:
    """A host's credential, empty where there is none. Raises OSError."""
    return _told(folder, {"want": host})


def _told(folder: Path, message: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there, _short(folder) as path:
        there.settimeout(_SECONDS)
        there.connect(path)
        there.sendall(json.dumps(message).encode())
        there.shutdown(socket.SHUT_WR)
        return _received(there)


def _received(there: socket.socket) -> dict[str, Any]:
    content = b""
    while piece := there.recv(1 << 16):
        content += piece
    return json.loads(content)


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """The socket's path; one of more than 107 characters could not be used."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_NAME}"
    finally:
        os.close(descriptor)
