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
from pathlib import Path

from impala_mm.runtime import ports
from impala_mm.runtime.thread_names import name_thread
from impala_mm.transport import local_sockets
from impala_mm.transport.credentials import ACTOR, LEARNER, Credentials

_PIECE = 1 << 16  # bytes that are read at a time
_RECORD = 1 << 14  # the same from TLS: its records are not larger
_DIAL_SECONDS = 5.0
_CUT_SECONDS = 20  # without an answer from the other host, after which a connection is closed


def keep_watch(connection: socket.socket) -> None:
    """Let the kernel close a connection whose other host has vanished, and send at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, _CUT_SECONDS // 2),
        (socket.TCP_KEEPINTVL, _CUT_SECONDS // 4),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, _CUT_SECONDS * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


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
            local, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=[local], daemon=True).start()

    def _serve(self, local: socket.socket) -> None:
        name_thread("relay")
        with local, contextlib.suppress(OSError), self.dial(_DIAL_SECONDS) as far:
            local.setblocking(False)
            far.setblocking(False)
            _carry(local, far)


@functools.lru_cache(maxsize=64)
def relay_to(address: str, credentials: Credentials) -> Relay:
    """Return this process's relay to a learner. Raises OSError."""
    return Relay(address, credentials)


def _carry(local: socket.socket, far: ssl.SSLSocket) -> None:
    """Carry bytes both ways between two non-blocking sockets until either end closes.

    Raises OSError where a connection breaks. What one end does not take yet is kept, and no more is
    read for it.
    """
    to_local = to_far = memoryview(b"")
    poll = select.poll()
    while True:
        far_wants = select.POLLIN
        while not to_local:
            try:
                data = far.recv(_RECORD)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLWantWriteError:  # it must answer the other end's TLS first
                far_wants = select.POLLOUT
                break
            if not data:
                return
            to_local = _send(local, memoryview(data))
        while not to_far:
            try:
                data = local.recv(_PIECE)
            except BlockingIOError:
                break
            if not data:
                return
            to_far = _send(far, memoryview(data))
        poll.register(local, (0 if to_far else select.POLLIN) | (select.POLLOUT if to_local else 0))
        poll.register(far, (0 if to_local else far_wants) | (select.POLLOUT if to_far else 0))
        for _, event in poll.poll():
            if event & ~(select.POLLIN | select.POLLOUT) and not event & select.POLLIN:
                return  # the connection has ended, and everything was read
        if to_local:
            to_local = _send(local, to_local)
        if to_far:
            to_far = _send(far, to_far)


def _send(connection: socket.socket, data: memoryview) -> memoryview:
    """Send what a connection takes now; return the rest."""
    try:
        return data[connection.send(data) :]
    except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return data
