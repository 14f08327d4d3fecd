"""Limits for connections without credentials, and what a front says of those that it refuses."""

from impala_mm.transport import front
from impala_mm.transport.front import Admission


class Door:
    """An `Admission` with a clock that the test sets."""

    def __init__(self, most=5000, handshakes=front.HANDSHAKES):
        self.now, self.said = 0.0, []
        self.admission = Admission(most, handshakes, self.said.append, lambda: self.now)

    def fail(self, peer, times, why="garbage"):
        """Let a peer fail at handshakes, one after the other; return how many it may begin."""
        begun = 0
        for _ in range(times):
            if handshake := self.admission.begin(peer):
                self.admission.fail(handshake, why)
                begun += 1
        return begun

    def serve(self, peer):
        """Let a peer succeed; return its connection, or None if it may not begin."""
        if handshake := self.admission.begin(peer):
            self.admission.succeed(handshake)
        return handshake

    def report(self, now):
        """Return what is reported at this time."""
        self.now = now
        self.said.clear()
        self.admission.report()
        return list(self.said)


def test_an_address_may_fail_only_so_often_while_others_are_served():
    door = Door()
    assert door.fail("10.0.0.1", 1000) == front.BURST
    assert door.serve("10.0.0.2")
    assert door.fail("10.0.0.2", 1000) == front.BURST, "one that is known may not, either"
    assert door.fail("10.0.0.3", 10) == 10
    door.now = 2.0
    assert door.fail("10.0.0.1", 1000) == 2 * front.PER_SECOND
    door.now = 1000.0
    assert door.fail("10.0.0.1", 1000) == front.BURST


def test_handshakes_that_succeed_do_not_count_however_many_they_are():
    door = Door()
    served = [door.serve("10.0.0.1") for _ in range(front.PER_PEER)]
    assert all(served)
    assert not door.serve("10.0.0.1"), "it has as many connections as one address may"
    assert door.serve("10.0.0.2")
    door.admission.close(served[0])
    assert door.serve("10.0.0.1")
    for host in range(front.PER_PEER + 1):  # of one network of IPv6, each with its own connections
        assert door.serve(f"2001:db8::{host + 1:x}")


def test_where_there_are_too_many_handshakes_the_address_with_most_makes_room():
    door = Door(handshakes=10)
    crowds = [door.admission.begin(f"10.0.0.{1 + n % 2}") for n in range(9)]
    assert all(crowds)
    assert not door.admission.most_crowded(door.admission.begin("10.0.0.3"))
    assert door.admission.most_crowded(newest := door.admission.begin("10.0.0.4")) == "10.0.0.1"
    door.admission.fail(crowds[0], "no room")
    assert not door.admission.most_crowded(newest)


def test_strangers_cannot_keep_an_address_away_that_was_served_lately():
    """Neither those of its network, nor all others together, nor by failing."""
    door, actor = Door(handshakes=10), "2001:db8::7"
    connection = door.serve(actor)
    door.fail("2001:db8::bad", 1000)
    assert not door.admission.begin("2001:db8::8")
    again = door.admission.begin(actor)
    assert again.is_known
    for n in range(20):
        door.admission.most_crowded(door.admission.begin(f"10.0.{n}.1"))
    assert not door.admission.most_crowded(again)
    door.now = 10 * front.KNOWN_SECONDS
    assert door.admission.begin(actor).is_known, "it is connected"
    door.admission.close(connection)
    door.now += front.KNOWN_SECONDS - 1
    assert door.admission.begin(actor).is_known
    door.now += 2
    assert not door.admission.begin(actor).is_known


def test_connections_are_limited_in_all():
    door = Door(most=2)
    for peer in ("10.0.0.1", "10.0.0.2"):
        assert door.serve(peer)
    assert not door.serve("10.0.0.3")
    (line,) = door.report(0)
    assert "refused from 10.0.0.3 (there are 2 connections" in line


def test_a_connection_that_does_not_reach_the_learner_is_reported():
    door = Door()
    door.admission.close(door.serve("10.0.0.1"), "no learner")
    assert door.report(0) == ["1 connection refused from 10.0.0.1 (no learner)"]


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


def test_one_host_may_have_many_addresses_of_ipv6():
    door = Door()
    for peer in ("2001:db8::1", "2001:db8::2", "fe80::1%eth0", "::ffff:10.0.0.1"):
        door.fail(peer, 1)
    said = [line.partition(" from ")[2].split()[0] for line in door.report(1)]
    assert sorted(said) == ["10.0.0.1", "2001:db8::/64", "fe80::/64"]
