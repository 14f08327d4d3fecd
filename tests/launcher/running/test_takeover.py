"""A frontend in place of a controller on a host, with stand-ins for hosts.

`tests/test_controller.py` has real ones.
"""

import dataclasses
import time
from types import SimpleNamespace

import pytest

from launcher.node.controlled_node import CONTROLLED, CONTROLLER_STATE
from launcher.node.run_registry import Record, Run, boot_id
from launcher.node.task import read_json, write_json
from launcher.remote.remote_node import OperationFailed
from launcher.running import controlled_hosts
from launcher.running.followed_run import FollowedRun
from launcher.running.recovery import Recovery

REPORT = {"process": [1, 1], "boot": "b", "host": "there", "since": 0.0, "beat": 0.0, "log": "/l"}
REPORT |= {"ended": "", "unreached": [], "logins": {}, "place": "c", "hung": False, "alive": True}
LEARNERS = {"name": "learners", "job": "learner", "host": "a", "place": "a", "kind": {}, "log": "l"}


class Far:
    """A frontend that follows a run on the hosts a, b and c, of which c has the controller."""

    def __init__(self, folder, monkeypatch):
        self.run, self.said, self.calls = Run("impala", folder), [], []
        (self.run.folder / "seen").mkdir(parents=True)
        (self.run.folder / "learners").mkdir()
        learners = {
            "state": "running",
            "supervisor": None,
            "restarts": 0,
            "since": 0.0,
            "time": 0.0,
            "learner_hosts": ["address-a:8001", "address-b:8001"],
        }
        write_json(self.run.folder / "learners" / "state.json", LEARNERS | learners)
        rest = (time.time(), boot_id(), str(folder), "", [LEARNERS], {}, [], 1)
        places = ["a", "b"]
        self.record = Record("impala", "first", *rest, targets={h: [h] for h in "abc"},
                             learner_places=places, first_learner_places=places)  # fmt: skip
        self.run.write_record(self.record)
        controlled_hosts.write_credentials(self.run, "c", "")
        nodes = {h: SimpleNamespace(error="", address=f"address-{h}") for h in "abc"}
        self.hosts = SimpleNamespace(remote_nodes=nodes, call=self.call, for_each=self.for_each)
        config = SimpleNamespace(
            lost_secs=60, rejoin_secs=1, restart_learners=True, orphan_secs=1, controller="here"
        )
        control = SimpleNamespace(run=self.run, hosts=self.hosts)
        self.followed = FollowedRun(control, None, config, [], None, 1.0, self.said.append)
        self.recovery = Recovery(self.followed)
        roles = {"supervisor": "s", "controller": "c"}
        monkeypatch.setattr(controlled_hosts.certificates, "by_role", lambda *_: roles)
        self.failing = {}

    def call(self, host_id, op, **arguments):
        if why := self.failing.get(op):
            raise OperationFailed(why)
        self.calls.append((host_id, op, arguments))
        if op == "start_order_server":
            return {"port": 7001, "id": "x"}
        return op == "has_start"

    def for_each(self, function, host_ids, say=None):
        return {host_id: function(host_id) for host_id in host_ids}

    def recover(self, *away, **report):
        """Let the frontend recover the run, after the controller's host has reported this."""
        for host_id in "abc":
            self.run.record_contact(host_id, "off" if host_id in away else "")
        term = read_json(self.run.folder / CONTROLLER_STATE).get("term", 1)
        write_json(self.run.folder / CONTROLLER_STATE, REPORT | {"term": term} | report)
        self.calls.clear()
        self.recovery._checked = 0.0
        self.recovery.recover()
        return [(host_id, op) for host_id, op, _ in self.calls]

    def terms(self):
        return {rest["term"] for _, op, rest in self.calls if op == "start_order_server"}


@pytest.fixture
def far(tmp_path, monkeypatch):
    return Far(tmp_path, monkeypatch)


def test_hosts_refuse_a_controller_before_a_frontend_restarts_what_fails(far):
    assert far.recover() == [], "the controller recovers the run"
    far.recover("c")
    far.followed.away_since["c"] = time.monotonic() - 61
    orders = far.recover("c")
    assert orders[:3] == [(host_id, "start_order_server") for host_id in "abc"]
    assert far.terms() == {2}
    assert "in place of the controller on there, whose orders are refused from now" in far.said[-1]
    far.recover("c")
    assert far.terms() == set(), "once"
    assert read_json(far.run.folder / CONTROLLED)["term"] == 2


def test_a_controllers_host_that_fails_meanwhile_does_not_end_the_frontend(far):
    far.recover("c")
    far.followed.away_since["c"] = time.monotonic() - 61
    far.failing["write_control"] = "No space left on device"
    far.recover("c")
    assert "could not reach the controller's host c: No space left on device" in far.said
    assert far.followed.restore_times["c"] > time.monotonic()


@pytest.mark.parametrize("reported", [["address-a:8001"], [], None])
def test_a_frontend_finds_the_learners_where_the_controller_has_left_them(
    far, reported, monkeypatch
):
    monkeypatch.setattr(far.followed, "start_controller", lambda: pytest.fail("not known where"))
    path = far.run.folder / "learners" / "state.json"
    write_json(path, read_json(path) | {"learner_hosts": reported})
    far.recover("c")
    far.followed.away_since["c"] = time.monotonic() - 61
    far.recover("c")
    assert far.run.record.learner_places == (["a"] if reported else ["a", "b"])
    far.recover()
    far.followed.restore_times.clear()
    far.recover()
    write_json(path, read_json(path) | {"learner_hosts": ["address-a:8001"]})
    far.recover()  # they had been starting
    assert far.run.record.learner_places == ["a"]
    assert far.run.record.first_learner_places == ["a", "b"]


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_host_that_was_away_for_a_moment_is_restored_only_after_a_reboot(far, rebooted):
    if rebooted:
        far.call = lambda host_id, op, **_: far.calls.append((host_id, op, {}))
        far.hosts.call = far.call
    far.recover("a")
    orders = far.recover()
    assert ("a", "has_start") in orders
    assert far.followed.restore_times.keys() == ({"a"} if rebooted else set())
    assert not far.said, "nobody saw it"


def test_a_controller_that_comes_back_recovers_nothing_and_the_next_one_takes_its_place(
    far, monkeypatch
):
    started = []

    def start():
        started.append(far.run.record.learner_places)
        report = REPORT | {"term": 2, "away": "", "superseded": False}
        write_json(far.run.folder / CONTROLLER_STATE, REPORT | {"term": 2})
        return report

    monkeypatch.setattr(far.followed, "start_controller", start)
    far.followed.away_since["c"] = time.monotonic() - 61
    far.recover("c")
    far.recover(beat=time.time())  # its host answers again, and it is alive
    assert far.followed.holds_lock(), "the frontend still recovers the run"
    assert not started, "what runs on its host is looked at first"
    far.followed.restore_times.clear()
    far.run.write_record(dataclasses.replace(far.record, learner_places=["a"]))
    far.recover()
    assert not started, "a learner's host is not back"
    far.run.write_record(far.record)
    far.recover()
    assert started == [["a", "b"]]
    assert not far.followed.holds_lock(), "the next controller recovers the run"


def test_a_frontend_that_is_itself_cut_off_leaves_the_controller_alone(far):
    far.followed.away_since = dict.fromkeys("abc", time.monotonic() - 61)
    assert far.recover(*"abc") == []
    far.recover("b", "c")  # its own cable is back, and the first host answers
    assert far.followed.has_controller_elsewhere()
    assert far.terms() == set()
    far.followed._was_alone -= 61
    far.recover("b", "c")
    assert far.terms() == {2}


def test_a_frontend_that_was_asked_for_no_controller_starts_none(far, monkeypatch):
    monkeypatch.setattr(far.followed, "start_controller", lambda: pytest.fail("it did"))
    far.followed.config.controller = "none"
    far.recover(alive=False)
    far.recover()
    assert far.terms() == set()
    assert far.followed.holds_lock()


def test_a_host_is_planned_anew_while_the_controller_lives_and_again_if_that_fails(
    far, monkeypatch
):
    planned = []
    monkeypatch.setattr(far.recovery._learners, "plan_on", lambda host, _: planned.append(host))
    far.recover()
    far.failing["start_order_server"] = "it was not begun"
    monkeypatch.setattr(controlled_hosts, "prepare", lambda *_: far.call("a", "start_order_server"))
    far.followed.restore_times["a"] = 0.0
    orders = far.recover()
    assert planned == ["a"]
    assert ("a", "has_start") in orders
    assert far.said[-1] == "could not prepare a for the controller: it was not begun"
    assert far.followed.restore_times["a"] > time.monotonic(), "it is tried again"
    far.followed.restore_times["b"] = 0.0
    far.failing.clear()
    orders = far.recover()
    assert ("b", "request_stop") in orders, "learners that were there before have moved"
    assert planned == ["a", "b"]
    assert "b" not in far.followed.restore_times
