"""The transports of an SSH connection: TCP, or a program (ProxyCommand)."""

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

from launcher.hosts.ssh_config import Route, Unreachable

_DEAD_MS = 60_000  # after which a connection without acknowledgements counts as lost
_END_SECONDS = 1.0  # for a ProxyCommand to end once its connection is closed


def connect_tcp(route: Route) -> socket.socket:
    """Connect by TCP, trying each of the host's addresses in turn; raise Unreachable."""
    until = time.monotonic() + route.connect_timeout
    try:
        found = socket.getaddrinfo(
            route.address, route.port, family=route.family, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise Unreachable(
            f"{route.host}: there is no host {route.address} ({_error_text(error)}); fix "
            f"column ip, or HostName in the SSH configuration"
        ) from None
    why = ""
    for i, (family, kind, protocol, _, address) in enumerate(found):
        connection = socket.socket(family, kind, protocol)
        # An address that does not answer leaves time for the others.
        connection.settimeout(max(0.1, (until - time.monotonic()) / (len(found) - i)))
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            why = why or _refusal(route, error)
            continue
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # otherwise a dead link is noticed after minutes
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS)
        return connection
    raise Unreachable(why)


class ProxySocket:
    """A connection within a jump host's or a program's, with the methods that paramiko calls."""

    def __init__(self, inner: Any, end: Callable[[], None], errors: IO[str] | None = None):
        self._inner, self._end, self._errors = inner, end, errors
        self._closing = threading.Lock()
        self._closed = False  # paramiko reads this attribute of a socket
        self.complaint = ""  # what the program printed, once the connection is closed

    def send(self, data: bytes) -> int:
        """Send bytes as a socket does; return their number."""
        return self._inner.send(data)

    def recv(self, size: int) -> bytes:
        """Receive up to `size` bytes as a socket does."""
        return self._inner.recv(size)

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout as a socket does."""
        self._inner.settimeout(seconds)

    def close(self) -> None:
        """Close this connection and the one that carries it; may be called again."""
        with self._closing:  # paramiko's thread closes it as well
            self._inner.close()
            self._closed = True
            end, self._end = self._end, lambda: None
            end()
            errors, self._errors = self._errors, None
            if errors:
                errors.seek(0)
                complaint = " ".join(errors.read(1000).split())
                self.complaint = f"its ProxyCommand printed: {complaint}" if complaint else ""
                errors.close()


def run_proxy_command(route: Route) -> ProxySocket:
    """Start the route's ProxyCommand, whose input and output are the connection.

    As with `ssh`, a shell parses the command.
    """
    ours, its = socket.socketpair()
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the socket closes it
    with its:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {route.proxy_command}"],
            stdin=its.fileno(),
            stdout=its.fileno(),
            stderr=errors,
            start_new_session=True,  # on Ctrl-C the frontend still needs its hosts
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
            f"{route.display_name} did not answer in {route.connect_timeout:g} s: is it running, "
            f"and does a firewall let you through?"
        )
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{route.display_name} refuses connections: does sshd run on that host, at that port?"
        )
    return f"{route.display_name} cannot be reached: {_error_text(error)}"


def _error_text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
