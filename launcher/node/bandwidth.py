"""How fast one host reaches another: bytes are sent to its port for a moment, and counted.

Python's own library is all that it needs: it runs on the hosts themselves (`local_node`).
"""

import contextlib
import socket
import threading
import time

_SECONDS = 10.0  # for a connection, and for a listener nobody comes to
_CHUNK = bytes(1 << 16)


class BandwidthServer:
    """Swallows what is sent to a port, and answers how much it was; for a minute at most."""

    def __init__(self, address: str, port: int):
        """Raises OSError where it cannot listen."""
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, port))
        self._socket.listen(256)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Nobody is let in any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=_count_bytes, args=(connection,), daemon=True).start()


def _count_bytes(connection: socket.socket) -> None:
    connection.settimeout(_SECONDS)
    count = 0
    with contextlib.suppress(OSError), connection:
        while chunk := connection.recv(1 << 18):
            count += len(chunk)
        connection.sendall(str(count).encode())


def measure(host: str, port: int, seconds: float) -> float:
    """Returns the Mbit/s to a `BandwidthServer`. Raises OSError where it cannot be reached."""
    with socket.create_connection((host, port), timeout=_SECONDS) as connection:
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            connection.sendall(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(64):
            answer += chunk
        return 8e-6 * int(answer or b"0") / (time.monotonic() - started)
