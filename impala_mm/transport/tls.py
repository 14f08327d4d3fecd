"""TLS between hosts: the credentials of a run, and the carrying of bytes between two sockets.

`Credentials` are the content of a token file. Of a `Carrier`'s sockets one is local, the other
speaks TLS: the front of a learner has many (`front`), the relay of an actor one in each thread
(`route`).
"""

import os
import select
import socket
import ssl
from typing import NamedTuple

from impala_mm.runtime.certificates import ROLES, split

LEARNER, ACTOR = ROLES
_PIECE = 1 << 16  # bytes that are read at a time
_RECORD = 1 << 14  # the same from TLS: its records are not larger
_TURN = 32  # pieces in one direction, before other connections have their turn
_CUT_SECONDS = 20  # without an answer from the other host, after which a connection is closed


class Credentials(NamedTuple):
    """The parts of a token file; without certificates nothing is encrypted."""

    token: str
    authority: str = ""  # the certificate that signed the others, as PEM; or empty
    learner: str = ""  # the learner's certificate and key; empty on hosts that only have actors
    actor: str = ""  # the actor's

    @classmethod
    def parse(cls, content: str) -> "Credentials":
        """Return the credentials in the content of a token file."""
        token, blocks = content.partition("\n")[0], split(content)
        if not blocks:
            return cls(token)
        assert len(blocks) in {3, 5}, "the token file is damaged"
        return cls(token, blocks[0], "\n".join(blocks[1:-2]), "\n".join(blocks[-2:]))

    def context(self, role: str) -> ssl.SSLContext:
        """Return the TLS context of a learner's front or of an actor: it accepts only the other."""
        is_learner = role == LEARNER
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_learner else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority)
        # A certificate can be loaded only from a file.
        with open(os.memfd_create("certificate"), "wb", buffering=0) as file:
            file.write((self.learner if is_learner else self.actor).encode())
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        if is_learner:
            context.num_tickets = 0  # sessions are not resumed
        return context


def role_of(certificate: dict | None) -> str:
    """Return the role that a peer's certificate names."""
    names = (certificate or {}).get("subjectAltName", ())
    return next((name for kind, name in names if kind == "DNS"), "")


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


class Carrier:
    """A pair of sockets; what one of them does not take yet is kept, and no more is read for it."""

    def __init__(self, local: socket.socket, far: ssl.SSLSocket):
        """Carry between these two, which this makes non-blocking."""
        local.setblocking(False)
        far.setblocking(False)
        self._local, self._far = local, far
        self._to_local = self._to_far = memoryview(b"")
        self._far_wants = select.POLLIN
        # What to wait for before the next `step`, as flags of select.poll.
        self.local_events = self.far_events = select.POLLIN

    def step(self, local_is_ready: bool, far_is_ready: bool) -> bool:
        """Carry what is possible now; return False if one end has closed.

        What is not ready is not read. Raises OSError where a connection breaks.
        """
        if self._to_local:
            self._to_local = _send(self._local, self._to_local)
        if self._to_far:
            self._to_far = _send(self._far, self._to_far)
        if far_is_ready and not self._read_far():
            return False
        if local_is_ready and not self._read_local():
            return False
        self.far_events = self._far_wants if not self._to_local else 0
        self.local_events = select.POLLIN if not self._to_far else 0
        if self._to_far:
            self.far_events |= select.POLLOUT
        if self._to_local:
            self.local_events |= select.POLLOUT
        return True

    def _read_far(self) -> bool:
        self._far_wants, pieces = select.POLLIN, 0
        # What TLS has decrypted already makes no event.
        while not self._to_local and (pieces < _TURN or self._far.pending()):
            try:
                data = self._far.recv(_RECORD)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLWantWriteError:  # it must answer the other end's TLS first
                self._far_wants = select.POLLOUT
                break
            if not data:
                return False
            self._to_local, pieces = _send(self._local, memoryview(data)), pieces + 1
            if len(data) < _RECORD and not self._far.pending():
                break  # probably all; otherwise the next event comes at once
        return True

    def _read_local(self) -> bool:
        for _ in range(_TURN):
            if self._to_far:
                break
            try:
                data = self._local.recv(_PIECE)
            except BlockingIOError:
                break
            if not data:
                return False
            self._to_far = _send(self._far, memoryview(data))
            if len(data) < _PIECE:
                break
        return True


def _send(connection: socket.socket, data: memoryview) -> memoryview:
    """Send what a connection takes now; return the rest."""
    try:
        return data[connection.send(data) :]
    except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return data
