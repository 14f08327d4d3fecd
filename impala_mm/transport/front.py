"""The front of a learner: the process that other hosts reach, by TLS 1.3.

It accepts actors whose certificate the run's authority has signed, and carries their bytes to the
Unix socket of the learner, where TensorFlow reads them. Nobody else's bytes get there.
`front_process` starts it and writes to its standard input what it must know; it ends when that
closes. It does not import TensorFlow.
"""

import contextlib
import resource
import select
import socket
import ssl
import struct
import time
from typing import Any

from impala_mm.transport.admission import HANDSHAKES, Admission
from impala_mm.transport.carrier import Carrier, keep_watch
from impala_mm.transport.credentials import ACTOR, LEARNER, Credentials, role_of

HANDSHAKE_SECONDS = 5.0
CONNECTIONS = 4000
SERVING = "serving"  # the line that it prints once it accepts connections
_ACCEPTED_AT_ONCE = 64  # connections, before those that are served have their turn
_RESET = struct.pack("ii", 1, 0)  # close at once, and keep no state of the connection
_ENDED = select.EPOLLHUP | select.EPOLLERR
# Why a handshake fails, by OpenSSL's name; others mean that the peer does not speak TLS 1.3.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it has the token file of another run",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the learner's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the learner's certificate has expired",
}


class Front:
    """The relay of one learner."""

    def __init__(self, given: dict[str, Any]):
        """Take what `front_process` has written: sockets, the learner's path, and credentials."""
        self.learner = given["learner"]
        self.context = Credentials(*given["credentials"]).context(LEARNER)
        self.admission = Admission(_raise_limit(), lambda text: print(text, flush=True))
        self.epoll = select.epoll()
        self.peers = dict[int, "_Peer"]()  # by the number of each of its sockets
        self.greeting = dict["_Peer", float]()  # those in a handshake, and its deadline; in order
        # Sockets to close once all events are processed: until then their numbers stay theirs.
        self.closing: list[socket.socket] = []
        self._listeners = {number: socket.socket(fileno=number) for number in given["listeners"]}

    def serve(self) -> None:
        """Serve until the learner's process is gone."""
        self.epoll.register(0, select.EPOLLIN)
        for listener in self._listeners.values():
            listener.setblocking(False)
            self.epoll.register(listener, select.EPOLLIN)
        print(SERVING, flush=True)
        while True:
            for number, event in self.epoll.poll(1.0):
                if number == 0:  # nothing else is written to it: it was closed
                    return
                if peer := self.peers.get(number):
                    peer.proceed(number, event)
                elif number in self._listeners:
                    self._accept(self._listeners[number])
            now = time.monotonic()
            for peer in [each for each, deadline in self.greeting.items() if deadline < now]:
                peer.refuse(f"it did not finish the handshake within {HANDSHAKE_SECONDS:.0f} s")
            while self.closing:
                self.closing.pop().close()
            self.admission.report()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, (address, *_) = listener.accept()
            except OSError:  # there is no other connection, or it has ended
                return
            if self.admission.begin(address):
                try:
                    _Peer(self, connection, address)
                except OSError as error:  # its peer has closed it already
                    connection.close()
                    self.admission.fail(address, _in_words(error))
            else:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.close()


class _Peer:
    """A connection from another host: first its handshake, then its way to the learner."""

    def __init__(self, front: Front, connection: socket.socket, address: str):
        self._front, self._address = front, address
        connection.setblocking(False)
        keep_watch(connection)
        self._far = front.context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        self._local: socket.socket | None = None
        self._carrier: Carrier | None = None
        self._events: dict[socket.socket, int] = {self._far: select.EPOLLIN}
        front.peers[self._far.fileno()] = self
        front.greeting[self] = time.monotonic() + HANDSHAKE_SECONDS
        front.epoll.register(self._far, select.EPOLLIN)

    def proceed(self, number: int, event: int) -> None:
        """Continue after an event of one of its sockets, by number."""
        if not self._carrier:
            self._shake_hands()
            return
        ended = event & _ENDED and not event & select.EPOLLIN
        with contextlib.suppress(OSError):
            is_far = number == self._far.fileno()
            if not ended and self._carrier.step(not is_far, is_far):
                assert self._local
                self._await(self._local, self._carrier.local_events)
                self._await(self._far, self._carrier.far_events)
                return
        self._end()

    def refuse(self, why: str) -> None:
        """Close a connection before its peer is known."""
        self._close()
        self._front.admission.fail(self._address, why)

    def _shake_hands(self) -> None:
        try:
            self._far.do_handshake()
        except ssl.SSLWantReadError:
            self._await(self._far, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._await(self._far, select.EPOLLOUT)
        except OSError as error:
            self.refuse(_in_words(error))
        else:
            if role_of(self._far.getpeercert()) == ACTOR:
                self._connect()
            else:
                self.refuse("its certificate is not an actor's")

    def _connect(self) -> None:
        """Connect an actor with the learner."""
        del self._front.greeting[self]
        self._front.admission.succeed(self._address)
        with contextlib.suppress(OSError):
            self._local = socket.socket(socket.AF_UNIX)
            self._front.peers[self._local.fileno()] = self
            self._carrier = Carrier(self._local, self._far)
            self._local.connect(self._front.learner)  # at once, or not at all
            self._front.epoll.register(self._local, select.EPOLLIN)
            self._events[self._local] = select.EPOLLIN
            # What came with the end of the handshake makes no event.
            self.proceed(self._far.fileno(), select.EPOLLIN)
            return
        self._end()

    def _end(self) -> None:
        """Close the connection of an actor."""
        self._close()
        self._front.admission.close(self._address)

    def _await(self, connection: socket.socket, events: int) -> None:
        if self._events[connection] != events:
            self._events[connection] = events
            self._front.epoll.modify(connection, events)

    def _close(self) -> None:
        self._front.greeting.pop(self, None)
        for connection in (self._far, self._local):
            if connection:
                self._front.peers.pop(connection.fileno(), None)
                self._front.closing.append(connection)


def _in_words(error: OSError) -> str:
    """Return why a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        name = error.reason or str(error)
        return _REASONS.get(name) or f"it does not speak TLS 1.3: {name}"
    return "it closed the connection during the handshake"


def _raise_limit() -> int:
    """Let this process open as many files as it may; return how many connections that allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = HANDSHAKES + 100
    wanted = 2 * CONNECTIONS + others
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max((wanted - others) // 2, 1)


def main(given: dict[str, Any]) -> None:
    """Serve a learner until it is gone; called by `front_process`."""
    Front(given).serve()
