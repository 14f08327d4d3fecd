"""What carries an SSH connection: TCP, or whatever a ProxyCommand makes of it."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from launcher.ssh.ssh_config import Route, Unreachable

_DEAD_MS = 60_000  # after which what nobody acknowledged counts as lost
_END_SECONDS = 1.0  # for a ProxyCommand to end once its connection is closed


def connect_tcp(route: Route) -> socket.socket:
    """TCP to the host, each of its addresses in turn. Raises Unreachable."""
    until = time.monotonic() + route.connect_timeout
    try:
        found = socket.getaddrinfo(
            route.address, route.port, family=route.family, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise Unreachable(
            f"{route.host}: nobody knows a host {route.address} ({_error_text(error)}); mend "
            f"column ip, or HostName in the SSH configuration"
        ) from None
    why = ""
    for i, (family, kind, protocol, _, address) in enumerate(found):
        connection = socket.socket(family, kind, protocol)
        # One that is silent leaves time for the others.
        connection.settimeout(max(0.1, (until - time.monotonic()) / (len(found) - i)))
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            why = why or _refusal(route, error)
            continue
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a dead link is noticed after minutes
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS)
        return connection
    raise Unreachable(why)


class ProxySocket:
    """A connection inside another thing, which ends with it; paramiko takes it for a socket."""

    def __init__(self, inner: Any, end: Callable[[], None], errors: IO[str] | None = None):
        self._inner, self._end, self._errors = inner, end, errors
        self._closing = threading.Lock()
        self._closed = False  # paramiko looks at this of a socket
        self.complaint = ""  # of a program that carries it, once it is closed

    def send(self, data: bytes) -> int:
        """As a socket's."""
        return self._inner.send(data)

    def recv(self, size: int) -> bytes:
        """As a socket's."""
        return self._inner.recv(size)

    def settimeout(self, seconds: float | None) -> None:
        """As a socket's."""
        self._inner.settimeout(seconds)

    def close(self) -> None:
        """Both; may be called again."""
        with self._closing:  # paramiko's thread closes it as well
            self._inner.close()
            self._closed = True
            end, self._end = self._end, lambda: None
            end()
            errors, self._errors = self._errors, None
            if errors:
                errors.seek(0)
                complaint = " ".join(errors.read(1000).split())
                self.complaint = f"its ProxyCommand says: {complaint}" if complaint else ""
                errors.close()


def run_proxy_command(route: Route) -> ProxySocket:
    """Its input and output are the connection; as with `ssh`, a shell reads the command."""
    ours, its = socket.socketpair()
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - it ends as it does
    with its:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {route.proxy_command}"],
            stdin=its.fileno(),
            stdout=its.fileno(),
            stderr=errors,
            start_new_session=True,  # Ctrl-C is the frontend's to act on, and needs its hosts
        )
    return ProxySocket(ours, lambda: _end(process), errors)


def _end(process: subprocess.Popen) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            if process.poll() is None:
                os.killpg(process.pid, number)
                process.wait(_END_SECONDS)


def _refusal(route: Route, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"{route.display_name} gave no answer in {route.connect_timeout:g} s: is it up, and "
            f"does a firewall let you through?"
        )
    if isinstance(error, ConnectionRefusedError):
        return f"{route.display_name} refuses connections: does sshd run there, at that port?"
    return f"{route.display_name} cannot be reached: {_error_text(error)}"


def _error_text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
