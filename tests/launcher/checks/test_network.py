"""The checks between machines, with stand-ins for hosts."""

import collections
from types import SimpleNamespace

import pytest

from launcher.checks.network import check_bandwidth
from launcher.hosts.remote_node import OperationFailed
from launcher.plan.workers_csv import Worker

PORTS = {"l0": 8001, "l1": 8002, "l2": 8003, "l3": 8004}


class Far:
    """Hosts, each with the address of its row, which record how they are measured."""

    def __init__(self):
        self.sent, self.rate, self.unreachable, self.silent = [], 900.0, set(), set()

    def call(self, host_id, op, **given):
        if op == "start_bandwidth_server":
            if host_id in self.silent:
                raise OperationFailed("it is in use")
            return given["port"] or PORTS[host_id]
        if op == "measure_bandwidth":
            self.sent.append((host_id, given["host"], given["port"], given["seconds"]))
            if given["host"] in self.unreachable:
                raise OperationFailed("timed out")
            return self.rate if given["seconds"] else 0.0
        return None

    def check(self, *rows):
        rows = [Worker(line, *row[:2], **row[2]) for line, row in enumerate(rows, 2)]
        findings = check_bandwidth(
            SimpleNamespace(
                workers=rows,
                learners=[row for row in rows if row.job == "learner"],
                installation_of=lambda row: SimpleNamespace(host_id=row.ip, address=row.ip),
                hosts=self,
                bind_host="",
            )
        )
        return list(dict.fromkeys((each.host_id, each.ok, each.message) for each in findings))

    def measured(self):
        return [(host, address) for host, address, _, seconds in self.sent if seconds]

    def connected(self):
        return [(host, address) for host, address, _, seconds in self.sent if not seconds]


LEARNERS = [("learner", host_id, {}) for host_id in PORTS]
ACTORS = [("actor", f"a{i}", {"count": 16}) for i in range(40)]


@pytest.fixture
def far():
    return Far()


def test_each_host_of_actors_measures_the_bandwidth_to_one_of_its_learners(far):
    found = far.check(*LEARNERS, *ACTORS)
    hosts = [row[1] for row in ACTORS]
    assert sorted(host for host, _ in far.measured()) == sorted(hosts)
    counts = collections.Counter(address for _, address in far.measured())
    assert counts == dict.fromkeys(PORTS, 10), "as often to each of them"
    pairs = {(host, address) for host in hosts for address in PORTS}
    assert {*far.measured(), *far.connected()} == pairs, "each host reaches each of its learners"
    assert len(far.sent) == len(pairs)
    assert ("a0", True, "900 Mbit/s to l0:8001") in found
    assert ("a0", True, "can connect to l1:8002") in found


def test_several_learners_of_a_host_are_measured_once(far):
    rows = [("learner", "l0", {"tf_port": port}) for port in (7001, 7002)]
    found = far.check(*rows, ("actor", "a", {"count": 2}))
    assert far.measured() == far.connected() == [("a", "l0")]
    assert {port for *_, port, _ in far.sent} == {7001, 7002}, "a firewall may close one of them"
    assert {message for *_, message in found} == {
        "900 Mbit/s to l0:7001",
        "can connect to l0:7002",
    }


def test_each_learner_that_cannot_be_reached_or_cannot_listen_is_named(far):
    far.unreachable, far.silent = {"l1", "l2"}, {"l3"}
    found = far.check(*LEARNERS, ("actor", "a", {"count": 4}))
    assert {message for _, ok, message in found if ok is False} == {
        "cannot reach its learner at l1:8002: timed out",
        "cannot reach its learner at l2:8003: timed out",
        "cannot listen on l3:0: it is in use",
    }


def test_a_slow_network_is_a_note_and_actors_beside_their_learner_measure_nothing(far):
    far.rate = 20.0
    found = far.check(LEARNERS[0], ("actor", "l0", {}), ("actor", "a", {}))
    assert found == [
        ("a", None, "20 Mbit/s to l0:8001, which may delay parameters and unrolls"),
    ]
