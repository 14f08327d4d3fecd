"""The actor's end of a connection to another host: a Unix socket, relayed through TLS.

TensorFlow's RPC cannot encrypt by certificates. It dials the relay's socket instead of a learner's
address; for each connection a thread dials the learner's front and carries the bytes. A thread per
connection that polls adds less to a call than an event loop would.
"""

import contextlib
import functools
import select
import socket
import ssl
import threading
import time
from pathlib import Path

from impala_mm.runtime import ports
from impala_mm.runtime.thread_names import name_thread
from impala_mm.transport import local_sockets
from impala_mm.transport.carrier import Carrier, keep_watch
from impala_mm.transport.credentials import ACTOR, LEARNER, Credentials

_DIAL_SECONDS = 5.0
_PAUSE_SECONDS = 0.5  # after a connection that could not be served
_ENDED = select.POLLHUP | select.POLLERR | select.POLLNVAL


class Relay:
    """A Unix socket of this process that leads to a learner's front."""

    def __init__(self, address: str, credentials: Credentials):
        """Listen; raise OSError if that is impossible. The learner is dialled later."""
        self._to, self._context = ports.split_address(address), credentials.context(ACTOR)
        self.path: Path = local_sockets.path_of_actor()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def dial(self, seconds: float) -> ssl.SSLSocket:
        """Connect to the front. Raises OSError, of which ssl.SSLError is one.

        A front that does not accept this actor's certificate says so only at the first read.
        """
        connection = socket.create_connection(self._to, seconds)
        try:
            keep_watch(connection)
            return self._context.wrap_socket(connection, server_hostname=LEARNER)
        except OSError:
            connection.close()
            raise

    def _accept(self) -> None:
        name_thread("relay")
        while True:
            local = None
            try:
                local, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[local], daemon=True).start()
            except (OSError, RuntimeError):  # too many files or threads; there may be fewer later
                if local:
                    local.close()
                time.sleep(_PAUSE_SECONDS)

    def _serve(self, local: socket.socket) -> None:
        name_thread("relay")
        with local, contextlib.suppress(OSError), self.dial(_DIAL_SECONDS) as far:
            _carry(local, far)


@functools.lru_cache(maxsize=64)
def relay_to(address: str, credentials: Credentials) -> Relay:
    """Return this process's relay to a learner. Raises OSError."""
    return Relay(address, credentials)


def _carry(local: socket.socket, far: ssl.SSLSocket) -> None:
    """Carry bytes until either end closes. Raises OSError where a connection breaks."""
    carrier, poll, numbers = Carrier(local, far), select.poll(), (local.fileno(), far.fileno())
    ready: dict[int, int] = {}
    while carrier.step(*(number in ready for number in numbers)):
        poll.register(local, carrier.local_events)
        poll.register(far, carrier.far_events)
        ready = dict(poll.poll())
        if any(event & _ENDED and not event & select.POLLIN for event in ready.values()):
            return
