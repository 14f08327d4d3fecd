"""Which connections a learner's front takes from whom, and what it says of those that it refuses.

Credentials decide who is served. The limits here bound what somebody without them can use up.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from impala_mm.runtime.log import Say

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
