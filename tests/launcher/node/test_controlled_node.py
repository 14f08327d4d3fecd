"""The controller's state on its host, where runs of the same name follow each other."""

import subprocess
import sys
import time

import pytest

from launcher.node import procfs
from launcher.node.controlled_node import ControlledNode
from launcher.node.local_node import LocalNode
from launcher.node.run_registry import Run, boot_id, remote_runs_folder
from launcher.node.task import read_json, write_json


class Host:
    """A host with the controller of the start "first", which sleeps."""

    def __init__(self):
        run = Run("impala", remote_runs_folder())
        self.node = ControlledNode(LocalNode(run, start=""))
        self.node.write_control(self.record("first"), {"servers": {}, "term": 1})
        states = run.folder.parent.parent / "controller" / "impala_mm" / "runs"
        self.folder = states / "impala"
        code = "import time; time.sleep(60)"
        self.process = subprocess.Popen([sys.executable, "-c", code])
        self.entry = {
            "process": [self.process.pid, procfs.start_time(self.process.pid)],
            "boot": boot_id(),
            "host": "there",
            "since": time.time(),
            "beat": time.time(),
            "command": [],
            "folder": "/",
            "log": "/l",
            "logins": {},
            "unreached": [],
            "term": 1,
            "ready": True,
            "ended": "",
        }
        write_json(self.folder / "controller.json", self.entry)
        (self.folder / "stop").write_text("save")

    def record(self, start):
        record = {"name": "impala", "id": start, "time": 0.0, "logdir": "/runs/a", "boot": ""}
        record |= {"socket": "", "processes": [], "flags": {}, "learners": [], "next_actor": 0}
        return record | {"learner_places": [], "started_from": "laptop"}

    def has_ended(self):
        return self.process.poll() is not None and not self.folder.exists()


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    made = Host()
    yield made
    made.process.kill()
    made.process.wait()


def test_another_start_inherits_no_controller_no_stop_and_no_states(host):
    host.node.write_control(host.record("first"), {"servers": {}, "term": 1})
    assert host.node.controller_state()["alive"]
    host.node.write_control(host.record("second"), {"servers": {}, "term": 1})
    assert host.process.poll() is not None
    assert host.node.controller_state() == {}
    assert not (host.folder / "stop").exists()
    assert read_json(host.folder / "run.json")["id"] == "second"


def test_the_hosts_of_the_learners_are_the_frontends_until_there_is_a_controller(host):
    """A frontend may have restarted the learners without a host before it left the controller."""

    def write(*places):
        record = host.record("first") | {"learner_places": places}
        host.node.write_control(record, {"servers": {}, "term": 1})
        return read_json(host.folder / "run.json")["learner_places"]

    (host.folder / "controller.json").unlink()
    assert write("a") == ["a"]
    write_json(host.folder / "controller.json", host.entry)
    assert write("a", "b") == ["a"]


def test_the_next_term_ends_the_controller_and_what_it_has_decided(host):
    control = {"servers": {}, "term": 2}
    host.node.write_control(host.record("first") | {"learner_places": ["b"]}, control)
    assert host.process.poll() is not None
    assert host.node.controller_state() == {}
    assert read_json(host.folder / "run.json")["learner_places"] == ["b"]


def test_a_start_without_a_controller_ends_that_of_the_start_before(host):
    host.node.begin_run(host.record("first"), "token", [])
    assert host.process.poll() is None
    host.node.begin_run(host.record("second"), "token", [])
    assert host.has_ended()


def test_ending_a_start_ends_its_controller_whatever_the_name_of_the_run(host):
    other = ControlledNode(LocalNode(Run("another", remote_runs_folder()), start=""))
    assert other.end_starts(["second"])
    assert host.process.poll() is None
    assert other.end_starts(["first"])
    assert host.has_ended()


@pytest.mark.parametrize("change", [{"beat": "now"}, {"process": [1]}, {"boot": None}])
def test_a_damaged_report_of_a_controller_counts_as_none(host, change):
    write_json(host.folder / "controller.json", host.entry | change)
    assert host.node.controller_state() == {}
