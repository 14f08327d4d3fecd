"""A slow link between an actor and its learner: a relay with a limited number of bytes/s."""

import contextlib
import socket
import threading
import time

from processes import free_port

_PIECE = 4096  # bytes


class SlowLink:
    """A relay from `address` to another; both directions share its bytes/s."""

    def __init__(self, to: str, bytes_per_second: float):
        self.address = f"127.0.0.1:{free_port()}"
        self._to, self._rate = _split(to), bytes_per_second
        self._free_at, self._lock = 0.0, threading.Lock()  # time when the link has sent its bytes
        self._listener = socket.create_server(_split(self.address))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                try:
                    called = socket.create_connection(self._to)
                except OSError:
                    caller.close()
                    continue
                for pair in ((caller, called), (called, caller)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                self._wait(len(piece))
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait(self, size):
        """Wait until the link has carried `size` more bytes."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


def _split(address):
    host, _, port = address.rpartition(":")
    return host, int(port)
