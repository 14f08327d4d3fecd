"""The front of a learner: the process that other hosts reach, by TLS 1.3.

It accepts actors whose certificate the run's authority has signed, and carries their bytes to the
Unix socket of the learner, where TensorFlow reads them. Nobody else's bytes get there.
`front_process` starts it and writes to its standard input what it must know; it ends when that
closes. It does not import TensorFlow.
"""

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
from asyncio import sslproto
from collections.abc import Callable
from typing import Any, cast

from impala_mm.transport.admission import HANDSHAKES, Admission
from impala_mm.transport.credentials import ACTOR, LEARNER, Credentials, role_of
from impala_mm.transport.relay import keep_watch

HANDSHAKE_SECONDS = 5.0
CONNECTIONS = 4000
_ACCEPTED_AT_ONCE = 64  # connections, before those that are served have their turn
_TLS_BUFFER = 1 << 16  # bytes for each connection; asyncio's 256 KiB fill memory and are not faster
_RESET = struct.pack("ii", 1, 0)  # close at once, and keep no state of the connection


class Front:
    """The relay of one learner."""

    def __init__(self, given: dict[str, Any]):
        """Take what `front_process` has written: sockets, the learner's path, and credentials."""
        self._path = given["learner"]
        self._context = Credentials(*given["credentials"]).context(LEARNER)
        self._listeners = [socket.socket(fileno=number) for number in given["listeners"]]
        self._admission = Admission(_raise_limit(), lambda text: print(text, flush=True))
        self._tasks = set[asyncio.Task]()

    async def serve(self) -> None:
        """Serve until the learner's process is gone."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(0, ended.set)  # nothing else is written to it: it was closed
        for listener in self._listeners:
            listener.setblocking(False)
            loop.add_reader(listener, self._accept, listener)
        while not ended.is_set():
            self._admission.report()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 1.0)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, (peer, *_) = listener.accept()
            except OSError:  # there is no other connection, or it has ended
                return
            if not self._admission.begin(peer):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.close()
                continue
            task = asyncio.get_running_loop().create_task(self._admit(connection, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _admit(self, connection: socket.socket, peer: str) -> None:
        """Make the handshake; then connect the actor with its learner."""
        loop = asyncio.get_running_loop()
        try:
            connection.setblocking(False)
            keep_watch(connection)
            far, end = await loop.connect_accepted_socket(
                _End,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            connection.close()
            self._admission.fail(peer, _in_words(error))
            return
        if role_of(far.get_extra_info("peercert")) != ACTOR:
            far.abort()
            self._admission.fail(peer, "its certificate is not an actor's")
            return
        self._admission.succeed(peer)
        end.when_lost = lambda: self._admission.close(peer)
        try:
            near, other = await loop.create_unix_connection(_End, self._path)
        except OSError:  # the learner ends
            far.abort()
            return
        end.other, other.other = near, far
        near.resume_reading()
        far.resume_reading()


class _End(asyncio.Protocol):
    """One end of a relayed connection; it reads once it knows the other end."""

    def __init__(self) -> None:
        self.when_lost: Callable[[], None] = lambda: None
        self.other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = cast(asyncio.Transport, transport)
        self._own.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.other:
            self.other.write(data)

    def pause_writing(self) -> None:
        if self.other:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other:
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.when_lost()
        if self.other:
            self.other.close()


def _in_words(error: OSError) -> str:
    """Return why a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return {
            "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
            "TLSV1_ALERT_UNKNOWN_CA": "it has the token file of another run",
        }.get(error.reason, f"it does not speak TLS 1.3: {error.reason}")
    return "it did not finish the handshake"


def _raise_limit() -> int:
    """Let this process open as many files as it may; return how many connections that allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = HANDSHAKES + 100
    wanted = 2 * CONNECTIONS + others
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max((wanted - others) // 2, 50)


def main(given: dict[str, Any]) -> None:
    """Serve a learner until it is gone; called by `front_process`."""
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    asyncio.run(Front(given).serve())
