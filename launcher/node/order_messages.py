"""Messages over a TLS connection that one thread reads and others write: lines of JSON.

OpenSSL does not allow two calls at the same time for one connection, so a lock is held for each
call, and none of them waits.
"""

import select
import ssl
import threading
import time
from collections.abc import Iterator

_SECONDS = 12.0  # timeout for the peer to take what is sent, or to send anything
_READ_BYTES = 1 << 16


class OrderMessages:
    """The lines over one connection."""

    def __init__(self, connection: ssl.SSLSocket, max_bytes: int):
        """Take over a connection; `max_bytes`: the longest line that is accepted."""
        connection.setblocking(False)
        self._connection, self._max_bytes = connection, max_bytes
        self._calling, self._sending = threading.Lock(), threading.Lock()

    def send(self, data: bytes) -> None:
        """Send lines. Raises OSError; TimeoutError if the peer does not take them."""
        until = time.monotonic() + _SECONDS
        with self._sending:
            while data:
                waits_to_read = False
                try:
                    with self._calling:
                        data = data[self._connection.send(data) :]
                    continue
                except ssl.SSLWantWriteError:
                    pass
                except ssl.SSLWantReadError:
                    waits_to_read = True
                self._wait(waits_to_read, until)

    def lines(self, seconds: float = _SECONDS) -> Iterator[bytes]:
        """Yield lines until the peer closes the connection.

        Raises OSError; TimeoutError if the peer sends nothing for `seconds`, ValueError if a line
        is too long.
        """
        received = b""
        while True:
            until = time.monotonic() + seconds
            content = self._receive(until)
            if not content:
                return
            *whole, received = (received + content).split(b"\n")
            yield from whole
            if len(received) > self._max_bytes:
                raise ValueError(f"a line of more than {self._max_bytes} bytes")

    def close(self) -> None:
        """Close the connection; who reads or writes it is released."""
        with self._calling:
            self._connection.close()

    def _receive(self, until: float) -> bytes:
        """Return what the peer has sent next; empty if it has closed the connection."""
        while True:
            waits_to_read = True
            try:
                with self._calling:
                    return self._connection.recv(_READ_BYTES)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLWantWriteError:
                waits_to_read = False
            self._wait(waits_to_read, until)

    def _wait(self, to_read: bool, until: float) -> None:
        """Wait a moment until the connection is ready. Raises TimeoutError, OSError."""
        if time.monotonic() > until:
            raise TimeoutError
        descriptor = self._connection.fileno()
        if descriptor < 0:
            raise OSError("the connection was closed")
        poll = select.poll()  # not `select`, which takes no descriptor above 1023
        poll.register(descriptor, select.POLLIN if to_read else select.POLLOUT)
        poll.poll(500)
