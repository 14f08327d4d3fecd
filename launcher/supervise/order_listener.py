"""Accepts connections that may give orders: their certificate is verified before a byte is read.

`daemon_supervisor` uses it, and calls it in a single thread. What strangers can use up is bounded.
"""

import collections
import contextlib
import json
import selectors
import ssl
import time
from collections.abc import Callable
from typing import Any

from launcher.supervise import order_channel
from launcher.supervise.callbacks import Say

_ORDER_SECONDS = 10.0  # timeout for a peer to show its certificate and to send its order
_REPORT_SECONDS = 60.0  # seconds between two reports on the same refused peer
_MAX_PEERS, _MAX_PER_ADDRESS = 100, 10  # connections that have not sent an order yet
_MAX_NAMED = 20  # refused peers that are named within a report's time
_MAX_ORDER_BYTES = 1 << 16
# Why a handshake fails, by OpenSSL's name.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not that of this run's mpirun",
    "TLSV1_ALERT_UNKNOWN_CA": "it expects the certificate of another run",
}

# Receives a connection, its peer's address and its order; it closes the connection at the end.
Obey = Callable[[ssl.SSLSocket, str, dict[str, Any]], None]


class OrderListener:
    """The listening socket of a supervisor, and the peers that have not sent an order yet."""

    def __init__(
        self, host: str, credentials: str, selector: selectors.BaseSelector, obey: Obey, say: Say
    ):
        """Listen on a host's address. Raises OSError.

        The owner calls the function that `selector` has for each event, and `check` at times.
        """
        self._context = order_channel.context(credentials, order_channel.SUPERVISOR)
        self._socket = order_channel.listen(host)
        self._socket.setblocking(False)
        self._selector, self.obey, self._say = selector, obey, say
        self._peers: list[_Peer] = []
        self._refused = collections.Counter[str]()  # by address, since the last report
        self._reported = time.monotonic()
        selector.register(self._socket, selectors.EVENT_READ, self._accept)

    @property
    def port(self) -> int:
        """The port of the socket."""
        return self._socket.getsockname()[1]

    def check(self) -> None:
        """Refuse peers that are late, and report how many were refused in the last minute."""
        for peer in [peer for peer in self._peers if time.monotonic() > peer.deadline]:
            peer.refuse(f"it sent no order within {_ORDER_SECONDS:.0f} s")
        if time.monotonic() - self._reported < _REPORT_SECONDS:
            return
        for address, count in self._refused.items():
            if count > 1:
                self._say(f"refused {count - 1} more connections from {address}")
        self._refused.clear()
        self._reported = time.monotonic()

    def count_refusal(self, address: str, why: str) -> None:
        """Report a refused peer, at once if it is the first of its address in a minute."""
        if address not in self._refused:
            if len(self._refused) >= _MAX_NAMED:
                return
            self._say(f"refused a connection from {address}: {why}")
        self._refused[address] += 1

    def watch(self, peer: "_Peer", events: int) -> None:
        """Let a peer proceed at these events."""
        if peer in self._peers:
            self._selector.modify(peer.connection, events, peer.proceed)
        else:
            self._peers.append(peer)
            self._selector.register(peer.connection, events, peer.proceed)

    def forget(self, peer: "_Peer") -> None:
        """Stop waiting for the order of a peer."""
        self._peers.remove(peer)
        self._selector.unregister(peer.connection)

    def _make_room(self, address: str) -> None:
        """End the oldest connection of an address, or of the one that has most, if it is needed.

        Those whose certificate was verified are the last to end.
        """
        counts = collections.Counter(peer.address for peer in self._peers)
        if counts[address] >= _MAX_PER_ADDRESS:
            crowd = address
        elif counts.total() >= _MAX_PEERS:
            crowd = counts.most_common(1)[0][0]
        else:
            return
        alike = [peer for peer in self._peers if peer.address == crowd]
        min(alike, key=lambda peer: (peer.is_known, peer.deadline)).refuse(
            "its place was needed for a newer connection"
        )

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, (address, *_) = self._socket.accept()
            self._make_room(address)
            order_channel.detect_loss(connection)
            connection.setblocking(False)
            secured = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
            self.watch(_Peer(self, secured, address), selectors.EVENT_READ)


class _Peer:
    """A connection that has not sent an order yet."""

    def __init__(self, listener: OrderListener, connection: ssl.SSLSocket, address: str):
        self.connection, self.address = connection, address
        self.deadline = time.monotonic() + _ORDER_SECONDS
        self._listener, self._received = listener, b""
        self.is_known = False  # whether its certificate was verified

    def refuse(self, why: str) -> None:
        """Close the connection without an answer."""
        self._listener.forget(self)
        self.connection.close()
        self._listener.count_refusal(self.address, why)

    def proceed(self) -> None:
        """Continue the handshake, or read more of the order."""
        try:
            if not self.is_known:
                self.connection.do_handshake()
                self.is_known = True
            while not self._received.endswith(b"\n"):
                content = self.connection.recv(_MAX_ORDER_BYTES)
                self._received += content
                if not content or len(self._received) > _MAX_ORDER_BYTES:
                    self.refuse("it sent no order")
                    return
        except ssl.SSLWantReadError:
            self._listener.watch(self, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._listener.watch(self, selectors.EVENT_WRITE)
        except OSError as error:
            self.refuse(_describe(error))
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        try:
            order = json.loads(self._received)
        except (ValueError, RecursionError):  # the latter: it is nested too deeply
            order = None
        if not isinstance(order, dict):
            self.refuse("its order is no JSON object")
            return
        self._listener.forget(self)
        self._listener.obey(self.connection, self.address, order)


def _describe(error: OSError) -> str:
    """Return why a handshake failed."""
    has_ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, ssl.SSLError) and error.library == "SSL" and not has_ended:
        return _REASONS.get(error.reason, f"it does not speak TLS 1.3 ({error.reason})")
    return "it closed the connection"
