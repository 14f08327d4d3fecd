"""How many hosts are restored after an outage of the frontend's network: stand-ins for hosts."""

import collections
import dataclasses
import threading
import time
from types import SimpleNamespace

import pytest

from launcher.follow.followed_run import FollowedRun
from launcher.follow.recovery import Recovery
from launcher.hosts.hosts import Hosts
from launcher.hosts.remote_node import OperationFailed
from launcher.hosts.ssh_config import Target
from launcher.plan import process_plan
from launcher.plan.process_plan import PlanError
from launcher.plan.settings import SshSettings
from launcher.plan.workers_csv import Worker
from launcher.supervise.json_files import write_json
from launcher.supervise.run_registry import ProcessEntry, Record, Run, boot_id

HOSTS = [f"192.0.2.{number}" for number in range(1, 13)]  # the first one has the learner
ANSWERS = {"has_start": True, "facts": {}, "states": {}}


class Node:
    """A host that counts the calls which it receives."""

    error = ""

    def __init__(self, far, host_id):
        self.far, self.address = far, host_id

    def call(self, op, **_):
        with self.far.lock:
            self.far.calls[op].append(self.address)
        if op in self.far.meetings:
            self.far.meetings[op].wait()
        if (op, self.address) in self.far.failing:
            raise self.far.failure(f"{self.address}: the disk is full")
        return ANSWERS.get(op, "")


class Far:
    """A frontend that recovers a run with an actor on each host."""

    def __init__(self, folder):
        self.calls, self.lock, self.said = collections.defaultdict(list), threading.Lock(), []
        self.failing, self.connected, self.failure = set(), [], OperationFailed
        self.meetings = {}  # calls that end once all hosts have received one
        self.run = Run("impala", folder)
        (self.run.folder / "seen").mkdir(parents=True)
        rows = [Worker(0, "learner", HOSTS[0])]
        rows += [Worker(line, "actor", host_id) for line, host_id in enumerate(HOSTS, 1)]
        names = ["learners", *(f"actor-{number}" for number in range(len(HOSTS)))]
        processes = [
            ProcessEntry(name, row.job, row.ip, row.ip, process_plan.row_signature(row), "/l")
            for name, row in zip(names, rows, strict=True)
        ]
        flags = {"learner_hosts": f"{HOSTS[0]}:8001", "logdir": "/r"}
        rest = (time.time(), boot_id(), "/r", "", processes, flags, ["x"], len(HOSTS))
        self.run.write_record(
            Record(
                *("impala", "first", *rest),
                targets={host_id: [host_id, 0, "", "", ""] for host_id in HOSTS},
                first_learner_places=HOSTS[:1],
            )
        )
        for name in names:
            (self.run.folder / name).mkdir()
            self.report(name, "running")
        hosts = Hosts("impala", {host_id: Target(host_id) for host_id in HOSTS}, SshSettings())
        hosts.remote_nodes = {host_id: Node(self, host_id) for host_id in HOSTS}
        self.followed = FollowedRun(self.run, hosts, workers=rows, say=self.said.append)
        self.followed.mirror = SimpleNamespace(on_connected=self.connected.append)

    def report(self, name, state):
        [entry] = [each for each in self.run.record.processes if each.name == name]
        path = self.run.folder / name / "state.json"
        write_json(path, dataclasses.asdict(entry) | {"state": state, "supervisor": None})

    def recover(self):
        """Let the frontend recover the run once all hosts have answered for a while."""
        for host_id in HOSTS:
            self.run.record_contact(host_id)
            self.followed.restore_times[host_id] = 0.0
        Recovery(self.followed).recover()

    def meet(self, *ops):
        """Let each host answer these calls once all hosts have received one."""
        self.meetings = {op: threading.Barrier(len(HOSTS), timeout=10) for op in ops}


@pytest.fixture
def far(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Far(tmp_path / "runs")
    yield made
    made.followed.release_lock()


def test_hosts_with_nothing_to_restart_are_asked_a_few_things_all_at_a_time(far):
    far.meet("has_start")
    far.recover()
    assert not far.followed.restore_times
    assert {op: len(hosts) for op, hosts in far.calls.items()} == {
        "has_start": len(HOSTS),
        "states": len(HOSTS),
    }
    assert not far.said


def test_the_run_is_begun_again_on_hosts_that_were_rebooted(far, monkeypatch):
    monkeypatch.setitem(ANSWERS, "has_start", False)
    (far.run.folder / "token").write_text("token")
    far.recover()
    assert sorted(far.calls["begin_run"]) == sorted(HOSTS)
    assert sorted(far.connected) == sorted(HOSTS), "their states are asked for"


@pytest.mark.parametrize("failure", [OperationFailed, OSError, PlanError])
def test_only_hosts_with_something_to_restart_are_asked_for_their_installation(far, failure):
    far.failure = failure
    for number in (2, 3, 4):
        far.report(f"actor-{number}", "lost")
    far.failing = {("states", HOSTS[3])}
    Recovery(far.followed)._restore_hosts(HOSTS)
    assert sorted(far.calls["facts"]) == [HOSTS[2], HOSTS[4]]
    assert sorted(far.calls["start_processes"]) == [HOSTS[2], HOSTS[4]]
    assert sorted(far.said) == [
        f"{HOSTS[2]}: restarted actor-2",
        f"{HOSTS[4]}: restarted actor-4",
        f"could not restart the processes of a host: {HOSTS[3]}: the disk is full",
    ]


def test_hosts_that_were_away_for_a_moment_are_asked_at_a_time(far):
    far.meet("has_start")
    for host_id in HOSTS:
        far.run.record_contact(host_id)
    far.followed.away_since = dict.fromkeys(HOSTS, time.monotonic())
    far.failing = {("has_start", HOSTS[5])}
    Recovery(far.followed).recover()
    assert far.followed.restore_times.keys() == {HOSTS[5]}
    assert list(far.calls) == ["has_start"]


def test_what_is_to_stop_or_is_ending_is_not_restarted(far):
    for number, state in ((2, "stopped"), (3, "saving")):
        far.report(f"actor-{number}", state)
    (far.run.folder / "actor-2" / "stop").write_text("save")
    far.recover()
    assert far.followed.restore_times.keys() == {HOSTS[3]}, "it is looked at again"
    assert far.calls["request_stop"] == [HOSTS[2]]
    assert HOSTS[3] not in {host_id for hosts in far.calls.values() for host_id in hosts}
    assert not far.calls["start_processes"]


def test_learners_that_were_moved_while_their_host_was_away_are_ended_there(far, monkeypatch):
    states = {"learners-1": {"state": "running"}, "learners": {"state": "stopped"}}
    monkeypatch.setitem(ANSWERS, "states", states | {"actor-0": {"state": "running"}})
    Recovery(far.followed)._restore_hosts(HOSTS[:1])
    assert far.calls["request_stop"] == HOSTS[:1], "learners-1, which is on no host any more"
