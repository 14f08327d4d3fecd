"""The front of a learner: the process that other hosts reach, by TLS 1.3.

It accepts actors whose certificate the run's authority has signed, and carries their bytes to the
Unix socket of the learner, where TensorFlow reads them. Nobody else's bytes get there. `Admission`
bounds what somebody without credentials can use up.

`listening` starts it and writes to its standard input what it must know; it ends when that closes.
It does not import TensorFlow.
"""

import contextlib
import errno
import ipaddress
import math
import resource
import select
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from impala_mm.runtime.log import Say
from impala_mm.transport.tls import ACTOR, LEARNER, Carrier, Credentials, keep_watch, role_of

HANDSHAKE_SECONDS = 5.0
CONNECTIONS = 4000
SERVING = "serving"  # the line that it prints once it accepts connections
_ACCEPTED_AT_ONCE = 64  # connections, before those that are served have their turn
_RESET = struct.pack("ii", 1, 0)  # close at once, and keep no state of the connection
_ENDED = select.EPOLLHUP | select.EPOLLERR
# Errors of `accept` that say that no file can be opened: the connection stays where it is.
_NO_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_SECONDS = 1.0  # after such an error
_OWN_FILES = 100  # of this process, besides connections
# Why a handshake fails, by OpenSSL's name of what came from the peer.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it has the token file of another run",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the learner's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the learner's certificate has expired",
}
BURST = 100  # handshakes that an address may have open, or fail at, in one go
PER_SECOND = 10.0  # failed handshakes per second that an address may go on with
HANDSHAKES = 500  # of strangers that are open at the same time; those of known addresses, too
PER_PEER = 1000  # connections of one address
KNOWN_SECONDS = 3600.0  # for which an address is known after it was served
REPORT_SECONDS = 60.0
OTHERS = "other addresses"  # those that are not counted one by one
_COUNTED = 5000  # addresses that are remembered for one purpose
_NAMED = 20  # addresses that a report names


class Handshake(NamedTuple):
    """A handshake, and later its connection, as `Admission` counts it."""

    address: str
    budget: str  # whose handshakes are counted together: an address or a network
    is_known: bool  # whether the address was served lately


class Admission:
    """The connections of a front by the address of their peer.

    An address that was served lately is known: its handshakes are counted apart, so that strangers
    cannot keep it from coming back.
    """

    def __init__(
        self,
        most: int,
        handshakes: int,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Admit at most `most` connections, and `handshakes` of strangers; report by `say`."""
        self._most, self._most_handshakes, self._say, self._clock = most, handshakes, say, clock
        self._open = {False: Counter[str](), True: Counter[str]()}  # handshakes, by is_known
        self._connections = Counter[str]()  # by address
        self._known = dict[str, float]()  # by address: when it was served last; the latest is last
        # By budget: failed handshakes, which decrease by PER_SECOND, and the time of that number.
        self._failed = dict[str, tuple[float, float]]()
        self._refused = Counter[str]()  # by address, since the last report
        self._why = dict[str, str]()  # by address: the last reason
        self._reported = clock()
        self._named = set[str]()  # addresses in the reports of the last minute

    def begin(self, peer: str) -> Handshake | None:
        """Return a handshake to begin with this peer; call `succeed` or `fail` with it."""
        address, why = _plain(peer), ""
        is_known = self._is_known(address)
        budget = address if is_known else _network(address)
        if self._open[is_known][budget] + self._failures(budget) >= BURST:
            why = "too many handshakes"
        elif self._connections[address] >= PER_PEER:
            why = f"it has {PER_PEER} connections"
        elif self._connections.total() >= self._most:
            why = f"there are {self._most} connections, as many as this process may open"
        if why:
            self._refuse(budget, why)
            return None
        self._open[is_known][budget] += 1
        return Handshake(address, budget, is_known)

    def most_crowded(self, begun: Handshake) -> str:
        """Return the budget of which the oldest handshake must end now; empty if there is room.

        There is too little once `begun` was one too many.
        """
        handshakes = self._open[begun.is_known]
        if handshakes.total() <= self._most_handshakes:
            return ""
        return handshakes.most_common(1)[0][0]

    def succeed(self, handshake: Handshake) -> None:
        """Count a handshake that succeeded; call `close` at the end of the connection."""
        _decrease(self._open[handshake.is_known], handshake.budget)
        self._connections[handshake.address] += 1
        _remember(self._known, handshake.address, self._clock())

    def fail(self, handshake: Handshake, why: str) -> None:
        """Count a handshake that failed."""
        _decrease(self._open[handshake.is_known], handshake.budget)
        failed = self._failures(handshake.budget) + 1
        _remember(self._failed, handshake.budget, (failed, self._clock()))
        self._refuse(handshake.budget, why)

    def close(self, handshake: Handshake, why: str = "") -> None:
        """Count the end of a connection; `why` it was not served, if so."""
        _decrease(self._connections, handshake.address)
        _remember(self._known, handshake.address, self._clock())
        if why:
            self._refuse(handshake.address, why)

    def report(self) -> None:
        """Report the refusals of the last minute, if one has passed; call it every second.

        The first refusal of an address is reported at once.
        """
        new = {peer for peer in self._refused if peer not in self._named}
        if self._clock() - self._reported >= REPORT_SECONDS:
            self._reported, self._named = self._clock(), set(self._refused)
            told = self._refused
            self._failed = {peer: v for peer, v in self._failed.items() if self._failures(peer)}
        elif new and len(self._named) < _NAMED:
            self._named |= new
            told = Counter({peer: self._refused[peer] for peer in new})
        else:
            return
        for peer, count in told.most_common(_NAMED):
            plural = "" if count == 1 else "s"
            self._say(f"{count:,} connection{plural} refused from {peer} ({self._why[peer]})")
        if others := told.most_common()[_NAMED:]:
            refused = sum(count for _, count in others)
            self._say(f"{refused:,} connections refused from {len(others)} other addresses")
        for peer in list(told):
            del self._refused[peer], self._why[peer]

    def _is_known(self, address: str) -> bool:
        served = self._known.get(address)
        return served is not None and (
            self._clock() - served < KNOWN_SECONDS or address in self._connections
        )

    def _failures(self, budget: str) -> float:
        number, since = self._failed.get(budget, (0.0, 0.0))
        return max(number - PER_SECOND * (self._clock() - since), 0.0)

    def _refuse(self, peer: str, why: str) -> None:
        if peer not in self._refused and len(self._refused) >= _COUNTED:
            peer = OTHERS
        self._refused[peer] += 1
        self._why[peer] = why


def _decrease(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _remember(of: dict[str, Any], key: str, value: Any) -> None:
    """Set a value as the last one; forget the first one if there are too many."""
    of.pop(key, None)
    of[key] = value
    if len(of) > _COUNTED:
        del of[next(iter(of))]


def _plain(peer: str) -> str:
    """Return an address without its interface; one of IPv4 as such."""
    peer = peer.partition("%")[0]
    mapped = ipaddress.IPv6Address(peer).ipv4_mapped if ":" in peer else None
    return str(mapped) if mapped else peer


def _network(address: str) -> str:
    """Return an address; of IPv6 the network of 64 bits, since one host may have all of it."""
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((address, 64), strict=False))


class Front:
    """The relay of one learner."""

    def __init__(self, start: dict[str, Any]):
        """Take what `listening` has written: sockets, the learner's path, and credentials."""
        self.learner = start["learner"]
        self.context = Credentials(*start["credentials"]).context(LEARNER)
        connections, handshakes = _raise_limit(start["connections"])
        self.admission = Admission(connections, handshakes, _say)
        self.epoll = select.epoll()
        self.peers = dict[int, "_Peer"]()  # by the number of each of its sockets
        self.greeting = dict["_Peer", float]()  # those in a handshake, and its deadline; in order
        # Sockets to close once all events are processed: until then their numbers stay theirs.
        self.closing: list[socket.socket] = []
        self._listeners = {number: socket.socket(fileno=number) for number in start["listeners"]}
        self._pauses_until: float | None = None  # while no connections are accepted
        self._pause_reported = -math.inf

    def serve(self) -> None:
        """Serve until the learner's process is gone."""
        self.epoll.register(0, select.EPOLLIN)
        for listener in self._listeners.values():
            listener.setblocking(False)
            self.epoll.register(listener, select.EPOLLIN)
        _say(SERVING)
        next_report = 0.0
        while True:
            for number, event in self.epoll.poll(1.0):
                if number == 0:  # nothing else is written to it: it was closed
                    return
                if peer := self.peers.get(number):
                    peer.proceed(number, event)
                elif number in self._listeners:
                    self._accept(self._listeners[number])
            now = time.monotonic()
            while self.greeting:
                peer, deadline = next(iter(self.greeting.items()))
                if deadline > now:
                    break
                peer.refuse(f"it did not finish the handshake within {HANDSHAKE_SECONDS:.0f} s")
            while self.closing:
                self.closing.pop().close()
            if self._pauses_until and self._pauses_until <= now:
                self._pause(False)
            if next_report <= now:
                self.admission.report()
                next_report = now + 1.0

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, (address, *_) = listener.accept()
            except OSError as error:  # there is no other connection, or it has ended
                if error.errno in _NO_FILES:
                    self._pause(True)
                return
            if handshake := self.admission.begin(address):
                try:
                    _Peer(self, connection, handshake)
                except OSError as error:  # its peer has closed it already
                    connection.close()
                    self.admission.fail(handshake, _in_words(error))
                self._make_room(handshake)
            else:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.close()

    def _make_room(self, begun: Handshake) -> None:
        """End the oldest handshake of the address that has most, if `begun` is one too many."""
        if crowd := self.admission.most_crowded(begun):
            theirs = (crowd, begun.is_known)
            oldest = next(p for p in self.greeting if p.handshake[1:] == theirs)
            oldest.refuse("its place was needed for newer handshakes")

    def _pause(self, begins: bool) -> None:
        """Accept no connections for a while, or accept them again."""
        now = time.monotonic()
        if begins and now - self._pause_reported > REPORT_SECONDS:
            _say("the process that other hosts connect to can open no more files: connections wait")
            self._pause_reported = now
        for listener in self._listeners.values():
            self.epoll.modify(listener, 0 if begins else select.EPOLLIN)
        self._pauses_until = now + _PAUSE_SECONDS if begins else None


class _Peer:
    """A connection from another host: first its handshake, then its way to the learner."""

    def __init__(self, front: Front, connection: socket.socket, handshake: Handshake):
        self._front, self.handshake = front, handshake
        connection.setblocking(False)
        keep_watch(connection)
        self._far = front.context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        self._local: socket.socket | None = None
        self._carrier: Carrier | None = None
        self._events: dict[socket.socket, int] = {self._far: select.EPOLLIN}
        try:
            front.epoll.register(self._far, select.EPOLLIN)
        except OSError:
            self._far.close()
            raise
        front.peers[self._far.fileno()] = self
        front.greeting[self] = time.monotonic() + HANDSHAKE_SECONDS

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
        self._front.admission.fail(self.handshake, why)

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
        self._front.admission.succeed(self.handshake)
        try:
            self._local = socket.socket(socket.AF_UNIX)
            self._front.peers[self._local.fileno()] = self
            self._carrier = Carrier(self._local, self._far)
            self._local.connect(self._front.learner)  # at once, or not at all
            self._front.epoll.register(self._local, select.EPOLLIN)
        except OSError as error:
            self._end(f"the learner's own socket cannot be reached: {error.strerror}")
            return
        self._events[self._local] = select.EPOLLIN
        # What came with the end of the handshake makes no event.
        self.proceed(self._far.fileno(), select.EPOLLIN)

    def _end(self, why: str = "") -> None:
        """Close the connection of an actor; `why` it was not served, if so."""
        self._close()
        self._front.admission.close(self.handshake, why)

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
    name = getattr(error, "reason", None) or ""
    if name in _REASONS:
        return _REASONS[name]
    # OpenSSL has read something that it does not accept. A connection that ends is no mistake of
    # the protocol: an actor gives up if nobody answers, as while the front starts.
    is_of_protocol = isinstance(error, ssl.SSLError) and getattr(error, "library", None) == "SSL"
    if is_of_protocol and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        if "_ALERT_" in name and name != "TLSV1_ALERT_PROTOCOL_VERSION":
            return f"it gave up the handshake: {name}"
        return f"it does not speak TLS 1.3: {name}"
    return "it closed the connection during the handshake"


def _raise_limit(connections: int) -> tuple[int, int]:
    """Let this process open the files that it needs for so many connections, or as many as it may.

    Return how many connections, and how many handshakes of strangers, that allows. As many
    handshakes of known addresses may come in addition.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + 2 * HANDSHAKES + _OWN_FILES
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    left = max(wanted - _OWN_FILES, 4)
    handshakes = min(HANDSHAKES, left // 4)
    return min((left - 2 * handshakes) // 2, connections), handshakes


def _say(text: str) -> None:
    print(text, flush=True)
