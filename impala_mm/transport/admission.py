"""Which connections a learner's front takes from whom, and what it says of those that it refuses.

Credentials decide who is served. The limits here bound what somebody without them can use up.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable

from impala_mm.runtime.log import Say

BURST = 100  # handshakes that an address may have open, or fail at, in one go
PER_SECOND = 10.0  # failed handshakes per second that an address may go on with
HANDSHAKES = 500  # that are open at the same time, from all addresses
PER_PEER = 1000  # connections of one address
REPORT_SECONDS = 60.0
_NAMED = 20  # addresses that a report names


class Admission:
    """The connections of a front by the address of their peer."""

    def __init__(self, most: int, say: Say, clock: Callable[[], float] = time.monotonic):
        """Admit at most `most` connections in all; report refusals by `say`."""
        self._most, self._say, self._clock = most, say, clock
        self._handshakes, self._connections = Counter[str](), Counter[str]()
        # By address: failed handshakes, which decrease by PER_SECOND, and the time of that number.
        self._failed: dict[str, tuple[float, float]] = {}
        self._refused = Counter[str]()  # by address, since the last report
        self._why: dict[str, str] = {}  # by address: the last reason
        self._reported = clock()
        self._known = set[str]()  # addresses in the reports of the last minute

    def begin(self, peer: str) -> bool:
        """Return whether to begin a handshake with this peer; if so, call `succeed` or `fail`."""
        peer, why = _network(peer), ""
        if self._handshakes[peer] + self._failures(peer) >= BURST:
            why = "too many handshakes"
        elif self._handshakes.total() >= HANDSHAKES:
            why = "too many handshakes from all addresses"
        elif self._connections[peer] >= PER_PEER:
            why = f"it has {PER_PEER} connections"
        elif self._connections.total() >= self._most:
            why = f"there are {self._most} connections, as many as this process may open"
        if why:
            self._refuse(peer, why)
            return False
        self._handshakes[peer] += 1
        return True

    def succeed(self, peer: str) -> None:
        """Count a handshake that succeeded; call `close` at the end of the connection."""
        self._end(self._handshakes, peer)
        self._connections[_network(peer)] += 1

    def fail(self, peer: str, why: str) -> None:
        """Count a handshake that failed."""
        self._end(self._handshakes, peer)
        peer = _network(peer)
        self._failed[peer] = self._failures(peer) + 1, self._clock()
        self._refuse(peer, why)

    def close(self, peer: str) -> None:
        """Count the end of a connection."""
        self._end(self._connections, peer)

    def report(self) -> None:
        """Report the refusals of the last minute, if one has passed; call it every second.

        The first refusal of an address is reported at once.
        """
        new = {peer for peer in self._refused if peer not in self._known}
        if self._clock() - self._reported >= REPORT_SECONDS:
            self._reported, self._known = self._clock(), set(self._refused)
            told = self._refused
            self._failed = {peer: v for peer, v in self._failed.items() if self._failures(peer)}
        elif new and len(self._known) < _NAMED:
            self._known |= new
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

    def _failures(self, peer: str) -> float:
        number, since = self._failed.get(peer, (0.0, 0.0))
        return max(number - PER_SECOND * (self._clock() - since), 0.0)

    def _refuse(self, peer: str, why: str) -> None:
        self._refused[peer] += 1
        self._why[peer] = why

    @staticmethod
    def _end(counts: Counter[str], peer: str) -> None:
        peer = _network(peer)
        counts[peer] -= 1
        if not counts[peer]:
            del counts[peer]


def _network(peer: str) -> str:
    """Return an address; of IPv6 the network of 64 bits, since one host may have all of it."""
    if ":" not in peer:
        return peer
    address = ipaddress.IPv6Address(peer.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
