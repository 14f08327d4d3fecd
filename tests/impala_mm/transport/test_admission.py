"""Limits for connections without credentials, and what a front says of those that it refuses."""

import pytest

from impala_mm.transport import admission
from impala_mm.transport.admission import Admission


class Door:
    """An `Admission` with a clock that the test sets."""

    def __init__(self, most=5000):
        self.now, self.said = 0.0, []
        self.admission = Admission(most, self.said.append, lambda: self.now)

    def fail(self, peer, times, why="garbage"):
        """Let a peer fail at handshakes, one after the other; return how many it may begin."""
        begun = 0
        for _ in range(times):
            if self.admission.begin(peer):
                self.admission.fail(peer, why)
                begun += 1
        return begun

    def report(self, now):
        """Return what is reported at this time."""
        self.now = now
        self.said.clear()
        self.admission.report()
        return list(self.said)


def test_an_address_may_fail_only_so_often_while_others_are_served():
    door = Door()
    assert door.fail("10.0.0.1", 1000) == admission.BURST
    assert door.fail("10.0.0.2", 10) == 10
    door.now = 2.0
    assert door.fail("10.0.0.1", 1000) == 2 * admission.PER_SECOND
    door.now = 1000.0
    assert door.fail("10.0.0.1", 1000) == admission.BURST


def test_handshakes_that_succeed_do_not_count_however_many_they_are():
    door = Door()
    for _ in range(admission.PER_PEER):
        assert door.admission.begin("10.0.0.1")
        door.admission.succeed("10.0.0.1")
    assert not door.admission.begin("10.0.0.1"), "it has as many connections as one address may"
    assert door.admission.begin("10.0.0.2")
    door.admission.close("10.0.0.1")
    assert door.admission.begin("10.0.0.1")


def test_open_handshakes_and_connections_are_limited_in_all():
    door = Door()
    peers = [f"10.0.{n}.1" for n in range(admission.HANDSHAKES)]
    assert all(map(door.admission.begin, peers))
    assert not door.admission.begin("10.1.0.1")
    door.admission.fail(peers[0], "late")
    assert door.admission.begin("10.1.0.1")

    door = Door(most=2)
    for peer in ("10.0.0.1", "10.0.0.2"):
        assert door.admission.begin(peer)
        door.admission.succeed(peer)
    assert not door.admission.begin("10.0.0.3")
    assert door.report(0) == [
        "1 connection refused from 10.0.0.3 (there are 2 connections, as many as this process may "
        "open)"
    ]


def test_refusals_are_reported_at_once_and_then_once_a_minute():
    door = Door()
    door.fail("10.77.1.21", 1)
    assert door.report(1) == ["1 connection refused from 10.77.1.21 (garbage)"]
    door.fail("10.77.1.21", 311)
    assert door.report(2) == []
    door.fail("10.77.1.22", 1, "no certificate")
    assert door.report(3) == ["1 connection refused from 10.77.1.22 (no certificate)"]
    assert door.report(59) == []
    assert door.report(60) == ["311 connections refused from 10.77.1.21 (too many handshakes)"]
    assert door.report(120) == []
    door.fail("10.77.1.22", 3)
    assert door.report(121) == ["3 connections refused from 10.77.1.22 (garbage)"], "heard again"


def test_many_addresses_make_few_lines_and_take_no_memory():
    door = Door()
    for n in range(5000):
        door.fail(f"10.1.{n // 250}.{n % 250}", 2)
    said = door.report(1)
    assert len(said) == 21
    assert said[-1] == "9,960 connections refused from 4980 other addresses"
    door.fail("10.9.9.9", 1)
    assert door.report(2) == []
    assert door.report(61) == ["1 connection refused from 10.9.9.9 (garbage)"]
    assert len(door.admission._failed) <= 1


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_one_host_may_have_many_addresses_of_ipv6(peer, name):
    door = Door()
    door.fail(peer, 1)
    assert door.report(1) == [f"1 connection refused from {name} (garbage)"]
