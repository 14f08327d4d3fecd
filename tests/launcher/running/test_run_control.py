"""What the end of a run with a controller on a host leaves on its hosts."""

import time
from types import SimpleNamespace

import pytest

from launcher.node.run_registry import Record, Run, boot_id
from launcher.node.task import write_json
from launcher.remote.remote_node import HostUnavailable
from launcher.running import controlled_hosts, run_control
from launcher.running.pending_stops import PendingStops
from launcher.running.run_control import RunControl

REPORT = {"process": [1, 1], "boot": "b", "host": "a", "since": 0.0, "beat": 0.0, "log": "/l"}
REPORT |= {
    "ended": "",
    "unreached": [],
    "logins": {},
    "place": "a",
    "hung": False,
    "alive": True,
    "term": 1,
}


class Hosts:
    """Two hosts that record what they are called for, of which some are unreachable."""

    def __init__(self, *unreachable):
        def node(host_id):
            return SimpleNamespace(error="", call=lambda op, **rest: self.call(host_id, op, **rest))

        self.remote_nodes = {host_id: node(host_id) for host_id in "ab"}
        self.local_node = SimpleNamespace(kill_learners=lambda start: 0)
        self.unreachable, self.calls = unreachable, []

    def call(self, host_id, op, **arguments):
        self.calls.append((host_id, op))
        if host_id in self.unreachable:
            raise HostUnavailable(f"{host_id} is off")

    def for_each(self, function, host_ids):
        found = {}
        for host_id in host_ids:
            try:
                found[host_id] = function(host_id)
            except HostUnavailable as error:
                found[host_id] = error
        return found


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Run("impala")
    (made.folder / "seen").mkdir(parents=True)
    rest = (time.time(), boot_id(), str(tmp_path), "", [], {}, [], 1)
    made.write_record(Record("impala", "first", *rest, targets={"a": ["a"], "b": ["b"]}))
    return made


@pytest.mark.parametrize(
    ("place", "report", "ends"),
    [
        ("", {}, []),  # nothing takes orders
        ("a", {}, ["a", "b"]),
        ("a", {"alive": False}, ["a", "b"]),
        ("a", {"ended": "the run has ended"}, ["a", "b"]),
        ("a", {"ended": ""}, []),  # the controller ends them once it has seen the end of the run
    ],
)
def test_what_takes_orders_ends_with_a_run_that_has_no_controller(run, place, report, ends):
    run.record_contact("a")
    if place:
        controlled_hosts.write_credentials(run, place, "")
    if report:
        write_json(run.folder / "controller.json", REPORT | report)
    hosts = Hosts()
    assert RunControl(run, hosts).end_remaining(print) == []
    assert [host_id for host_id, op in hosts.calls if op == "end_orders"] == ends


class EndedRun:
    """A run whose learners have ended, and whose evaluator is testing; it records the requests."""

    folder, record, name = "", SimpleNamespace(host_id_of=lambda name: ""), "impala"

    def __init__(self):
        self.asked, self.looks = [], 0

    def states(self):
        self.looks += 1
        is_over = "now" in self.asked or self.looks > 30
        return {
            "evaluator": {
                "name": "evaluator",
                "job": "evaluator",
                "state": "stopped" if is_over else "ending",
            }
        }

    def request_stop(self, mode, name=""):
        self.asked.append(mode)


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_evaluator_is_waited_for_until_ctrl_c(monkeypatch, interrupted):
    monkeypatch.setattr(run_control, "_END_SECONDS", 0.0)
    monkeypatch.setattr(run_control, "_MESSAGE_SECONDS", 0.2)
    ended, said = EndedRun(), []
    hosts = Hosts()
    hosts.remote_nodes = {}
    RunControl(ended, hosts)._wait_for_end(said.append, lambda: interrupted)
    assert ended.asked == (["now"] if interrupted else [])
    assert ended.states()["evaluator"]["state"] == "stopped"
    assert interrupted or "evaluator" in said[0]


def test_a_controller_on_an_unreachable_host_is_ended_when_the_host_is_back(run):
    RunControl(run, Hosts()).end_controller("a", "first")
    assert PendingStops().starts_on("a") == []
    RunControl(run, Hosts("a")).end_controller("a", "first")
    assert PendingStops().starts_on("a") == ["first"]
    hosts = Hosts()
    RunControl(run, hosts).end_pending(print)
    assert hosts.calls == [("a", "end_starts")]
    assert PendingStops().starts_on("a") == []


def test_a_host_that_the_runs_controller_could_not_reach_either_is_named_by_both(run):
    """A controller on this machine and `--stop` end the run at the same time."""
    PendingStops().add("b", "first")
    assert RunControl(run, Hosts()).record_pending_stops(run.record) == ["b"]
