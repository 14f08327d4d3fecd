"""What the frontend that recovers a run restarts and stops on many hosts: stand-ins for hosts."""

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
from launcher.supervise.process_state import State
from launcher.supervise.run_registry import ProcessEntry, Record, Run, boot_id

HOSTS = [f"192.0.2.{number}" for number in range(1, 13)]  # the first one has the learner
ANSWERS = {"has_start": True, "facts": {}}


class Node:
    """A host that counts the calls which it receives."""

    error = ""

    def __init__(self, far, host_id):
        self.far, self.address = far, host_id

    def call(self, op, **arguments):
        with self.far.lock:
            self.far.calls[op].append(self.address)
            if op == "request_stop":
                self.far.asked.append((self.address, arguments["name"], arguments["mode"]))
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
        self.asked = []  # the stop requests
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
        self.followed.mirror = SimpleNamespace(on_connected=self.connected.append, reported={})
        self.recovery = Recovery(self.followed)

    def report(self, name, state, **more):
        [entry] = [each for each in self.run.record.processes if each.name == name]
        path = self.run.folder / name / "state.json"
        write_json(path, dataclasses.asdict(entry) | {"state": state, "supervisor": None} | more)

    def recover(self, seconds=0.0, connected=HOSTS):
        """Let the frontend recover the run `seconds` after all hosts were connected."""
        for host_id in connected:
            self.run.record_contact(host_id)
        self.recovery._restore(self.run.record, 1000.0 + seconds)

    def meet(self, *ops):
        """Let each host answer these calls once all hosts have received one."""
        self.meetings = {op: threading.Barrier(len(HOSTS), timeout=10) for op in ops}


@pytest.fixture
def far(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Far(tmp_path / "runs")
    yield made
    made.followed.release_lock()


def _lose(far, *numbers):
    """Let the frontend see for the first time that the actors of these hosts are lost."""
    for number in numbers:
        far.report(f"actor-{number}", "lost")
    far.recover()
    assert not far.calls


def test_hosts_with_nothing_to_restart_are_asked_nothing(far):
    for seconds in (0, 5, 60):
        far.recover(seconds)
    assert not far.calls
    assert not far.said


def test_all_hosts_are_restored_at_a_time(far):
    far.meet("has_start")
    _lose(far, *range(len(HOSTS)))
    far.recover(5)
    assert len(far.said) == len(HOSTS)


def test_the_run_is_begun_again_on_hosts_that_were_rebooted(far, monkeypatch):
    monkeypatch.setitem(ANSWERS, "has_start", False)
    (far.run.folder / "token").write_text("token")
    _lose(far, 2, 3)
    far.recover(5)
    assert sorted(far.calls["begin_run"]) == sorted(HOSTS[2:4])
    assert sorted(far.connected) == sorted(HOSTS[2:4]), "their states are asked for"
    assert f"{HOSTS[2]}: restarted actor-2" in far.said


@pytest.mark.parametrize("failure", [OperationFailed, OSError, PlanError])
def test_only_hosts_with_something_to_restart_are_asked_for_their_installation(far, failure):
    far.failure = failure
    _lose(far, 2, 3, 4)
    far.failing = {("kill", HOSTS[3])}
    far.recover(5)
    assert sorted(far.calls["facts"]) == [HOSTS[2], HOSTS[4]]
    assert sorted(far.calls["start_processes"]) == [HOSTS[2], HOSTS[4]]
    assert sorted(far.said) == [
        f"{HOSTS[2]}: restarted actor-2, whose supervisor was killed",
        f"{HOSTS[4]}: restarted actor-4, whose supervisor was killed",
        f"could not restart the processes of a host: {HOSTS[3]}: the disk is full",
    ]
    far.failing.clear()
    far.recover(40)
    assert far.calls["start_processes"].count(HOSTS[3]) == 1


def test_a_host_that_could_not_restart_a_process_is_asked_for_its_states_and_then_again(far):
    _lose(far, 2)
    far.failing = {("start_processes", HOSTS[2])}
    far.recover(5)
    assert far.connected == [HOSTS[2]], "the copied state was removed"
    far.report("actor-2", "lost")  # as the host reports it again
    far.failing.clear()
    far.recover(40)
    assert f"{HOSTS[2]}: restarted actor-2, whose supervisor was killed" in far.said


def test_what_a_restart_does_not_help_is_restarted_again_later(far):
    _lose(far, 2)
    for seconds in (1, 5, 20):
        far.recover(seconds)
    assert far.calls["start_processes"] == [HOSTS[2]]
    far.report("actor-2", "lost")  # what the frontend removes when it starts a process
    far.recover(60)
    assert far.calls["start_processes"] == [HOSTS[2]] * 2


@pytest.mark.parametrize(
    ("learners", "restarted"),
    [("running", True), ("away", True), ("saving", False), ("ended", False), ("lost", False)],
)
def test_actors_are_restarted_only_for_learners_that_may_run(far, learners, restarted):
    """Learners on a host that only this machine cannot reach still train."""
    far.report("actor-2", "stopped")  # its learners had ended, or were silent for --orphan_secs
    if learners != "away":
        far.report("learners", learners)
    for seconds in (0, 5):
        far.recover(seconds)
        if learners == "away":
            far.run.record_contact(HOSTS[0], "it has no network")
    assert far.calls["start_processes"] == [HOSTS[2]] * restarted


def test_processes_of_a_host_that_end_shortly_after_each_other_are_restarted_together(far):
    host_id, entries = HOSTS[2], far.run.record.processes
    moved = [dataclasses.replace(e, place=host_id) if e.name == "actor-3" else e for e in entries]
    far.run.write_record(dataclasses.replace(far.run.record, processes=moved))
    far.report("actor-2", "stopped")
    far.recover(0)
    far.report("actor-3", "stopped")
    far.recover(2)
    far.recover(4)
    assert far.said == [f"{host_id}: restarted actor-2, actor-3"]


def test_what_was_stopped_or_is_ending_is_not_restarted(far):
    far.report("actor-2", "stopped")
    (far.run.folder / "actor-2" / "stop").write_text("save")
    far.report("actor-3", "saving")
    far.report("actor-4", "stopped", is_to_stop=True)  # in its window, on its host
    for seconds in (0, 5):
        far.recover(seconds)
    assert not far.calls


@pytest.mark.parametrize(("learners", "restarted"), [("running", True), ("away", False)])
def test_a_learners_process_is_restarted_only_where_mpirun_waits_for_it(far, learners, restarted):
    record = far.run.record
    (first,) = [each for each in record.processes if each.name == "learners"]
    second = dataclasses.replace(first, name="learners-1", place=HOSTS[1])
    far.run.write_record(dataclasses.replace(record, processes=[*record.processes, second]))
    (far.run.folder / "learners-1").mkdir()
    far.report("learners-1", "stopped", is_to_stop=True)  # at the end of an earlier mpirun
    for seconds in (0, 5):
        if learners == "away":
            far.run.record_contact(HOSTS[0], "it has no network")
        far.recover(seconds, [HOSTS[1]] if learners == "away" else HOSTS)
    assert far.calls["kill"] == [HOSTS[1]] * restarted
    assert len(far.calls["start_processes"]) == restarted


def test_a_stop_is_requested_soon_of_what_was_just_restarted(far):
    _lose(far, 2)
    far.recover(5)
    (far.run.folder / "actor-2" / "stop").write_text("save")
    far.report("actor-2", "running")
    far.followed.mirror.reported = {
        HOSTS[2]: {"actor-2": State("actor-2", "actor", HOSTS[2], "running")}
    }
    far.recover(6)
    far.recover(10)
    assert far.asked == [(HOSTS[2], "actor-2", "save")]


def test_a_stop_that_a_host_has_missed_is_requested_again(far):
    (far.run.folder / "actor-2" / "stop").write_text("now")
    (far.run.folder / "actor-3" / "stop").write_text("save")
    (far.run.folder / "actor-4" / "stop").write_text("now")  # once it saved, and the host was away
    missed = State("actor-2", "actor", HOSTS[2], "running")
    far.followed.mirror.reported = {
        HOSTS[2]: {"actor-2": missed},
        HOSTS[3]: {"actor-3": missed._replace(name="actor-3", is_to_stop=True)},
        HOSTS[4]: {"actor-4": missed._replace(name="actor-4", is_to_stop=True, state="saving")},
    }
    for seconds in (0, 5):
        far.recover(seconds)
    assert list(far.calls) == ["request_stop"]
    assert sorted(far.asked) == [(HOSTS[2], "actor-2", "now"), (HOSTS[4], "actor-4", "now")]


def test_learners_that_were_moved_while_their_host_was_away_are_ended_there(far):
    def learners(name, state, number):
        return State(name, "learner", "h", state, supervisor=(number, 1))

    # HOSTS[0] has another name, too, by which it also reports the learners: HOSTS[2].
    here = learners("learners", "running", 7)
    far.report("learners", "running", supervisor=(7, 1))
    far.followed.mirror.reported = {
        HOSTS[0]: {"learners": here, "learners-1": learners("learners-1", "running", 8)},
        HOSTS[1]: {"learners": here._replace(supervisor=(9, 1))},
        HOSTS[2]: {"learners": here},
        HOSTS[3]: {"learners-1": learners("learners-1", "stopped", 9)},
    }
    for seconds in (0, 5):
        far.recover(seconds)
    assert sorted(far.asked) == [
        (HOSTS[0], "learners-1", "now"),
        (HOSTS[1], "learners", "now"),
    ]
