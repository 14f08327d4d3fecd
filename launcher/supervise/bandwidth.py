"""Measures the bandwidth between two hosts: one sends bytes to a port of the other for a moment.

It runs on the hosts themselves (`machine_probe` calls it).
"""

import contextlib
import errno
import socket
import threading
import time

from launcher.supervise.task import FIRST_PORT

_SECONDS = 10.0  # seconds until a connection times out
_CHUNK = bytes(1 << 16)


class BandwidthServer:
    """A server that discards what it receives, and replies with the number of bytes."""

    def __init__(self, address: str, port: int):
        """Listen on a port, 0 for the first free one from 8001 up, as a learner would.

        Raises OSError if that is not possible.
        """
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        for self.port in [port] if port else range(FIRST_PORT, 65536):
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._socket.bind((address, self.port))
                self._socket.listen(256)
                break
            except OSError as error:
                self._socket.close()
                if port or error.errno != errno.EADDRINUSE:
                    raise
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._socket.shutdown(socket.SHUT_RDWR)  # which ends `accept`
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # `close` was called
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=_count_bytes, args=(connection,), daemon=True).start()


def _count_bytes(connection: socket.socket) -> None:
    connection.settimeout(_SECONDS)
    count = 0
    with contextlib.suppress(OSError), connection:  # the sender has gone
        while chunk := connection.recv(1 << 18):
            count += len(chunk)
        connection.sendall(str(count).encode())


def measure(host: str, port: int, seconds: float) -> float:
    """Return the Mbit/s to a `BandwidthServer`. Raises OSError if it cannot be reached."""
    with socket.create_connection((host, port), timeout=_SECONDS) as connection:
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            connection.sendall(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(64):
            answer += chunk
        return 8e-6 * int(answer or b"0") / (time.monotonic() - started)
