"""Tests of the copies of states and logs, which several frontends may write at the same time."""

import base64
import threading
import time
import types

import pytest
from supervising import until

from launcher.follow.connected_run import ConnectedRun
from launcher.hosts.state_mirror import StateMirror
from launcher.supervise.run_registry import Record, Run, boot_id

ACTOR = {"name": "actor-0", "job": "actor", "host": "there", "place": "there", "log": "/l"}


class Hosts:
    """Hosts that record the calls they receive."""

    def __init__(self):
        self.asked = []

    def call(self, host_id, op, **arguments):
        self.asked.append((host_id, op, arguments))


@pytest.fixture
def run(tmp_path):
    """Return a run with an actor on another host."""
    made = Run("impala", tmp_path)
    (made.folder / "seen").mkdir(parents=True)
    rest = (time.time(), boot_id(), str(tmp_path), "", [ACTOR], {}, [], 1)
    made.write_record(Record("impala", "id", *rest))
    return made


@pytest.fixture
def copied(run, tmp_path):
    hosts, copy = Hosts(), tmp_path / "learners.log"
    mirror = StateMirror(run, hosts, {"there": {"/log": copy}})

    def tell(offset, data):
        mirror.on_file_data("there", "/log", offset, base64.b64encode(data).decode())

    return hosts, copy, tell


def test_the_copy_of_a_rotated_log_is_kept_as_the_previous_log(copied):
    _, copy, tell = copied
    tell(0, b"first ")
    tell(6, b"second")
    tell(0, b"new")
    assert copy.read_bytes() == b"new"
    assert copy.with_name("learners.log.1").read_bytes() == b"first second"


def test_a_log_that_another_frontend_has_rotated_is_not_rotated_again(copied):
    _, copy, tell = copied
    before = copy.with_name("learners.log.1")
    before.write_bytes(b"first second")
    copy.write_bytes(b"ne")
    tell(0, b"new")
    assert copy.read_bytes() == b"new"
    assert before.read_bytes() == b"first second"
    copy.write_bytes(b"new and more")  # another frontend was quicker
    tell(3, b" an")
    assert copy.read_bytes() == b"new and more"


def test_a_copy_that_was_replaced_is_followed_from_its_end(copied):
    hosts, copy, tell = copied
    copy.write_bytes(b"brought whole")
    tell(100, b"later")
    tell(105, b"still later")
    until(lambda: hosts.asked)
    assert hosts.asked[0] == ("there", "follow", {"start": "id", "files": {"/log": 13}})
    assert copy.read_bytes() == b"brought whole"


@pytest.mark.parametrize(("why", "over"), [("", []), ("the connection was lost", ["there"])])
def test_a_host_that_another_frontend_left_is_not_unreachable_for_one_that_stops_the_run(
    run, why, over
):
    """Until the host reports again, the state is the other frontend's: no frontend is connected."""
    hosts = types.SimpleNamespace(
        remote_nodes={"there": types.SimpleNamespace(error=why)},
        close=lambda: None,
        for_each=lambda *_: {},
    )
    mirror = StateMirror(run, hosts, {})
    state = ACTOR | {"state": "ending", "supervisor": None}
    mirror.on_states("there", {"actor-0": state})
    ConnectedRun(run, hosts).disconnect()
    speaks = [state | {"state": "ended"}] if not why else []
    later = threading.Timer(1, lambda: [mirror.on_states("there", {"actor-0": s}) for s in speaks])
    later.start()
    try:
        assert ConnectedRun(run, hosts).end_remaining() == over
    finally:
        later.join()
    assert run.states()["actor-0"].state == ("ended" if not why else "lost")


def test_a_host_counts_as_connected_only_once_its_states_are_written(run, monkeypatch):
    seen, path = [], run.folder / "actor-0" / "state.json"
    monkeypatch.setattr(run, "record_contact", lambda host_id: seen.append(path.exists()))
    StateMirror(run, Hosts(), {}).on_states("there", {"actor-0": ACTOR | {"state": "running"}})
    assert seen == [True]


def test_what_was_to_stop_on_a_host_stays_so_when_the_host_has_lost_its_disk(run):
    mirror = StateMirror(run, Hosts(), {})
    for is_to_stop in (False, True):
        mirror.on_states("there", {"actor-0": ACTOR | {"state": "x", "is_to_stop": is_to_stop}})
        mirror.on_states("there", {}, all_states=True)
        actor = run.states()["actor-0"]
        assert (actor.state, actor.is_to_stop) == ("lost", is_to_stop)


def test_contacts_of_another_frontend_do_not_count_as_those_of_this_one(run):
    """A host ignores requests, such as a stop, until it knows which start of the run is meant."""
    run.record_contact("there")  # by another frontend
    reports = []

    def stay_connected(mirror):
        def report():
            reports.append("there")
            mirror.on_states("there", {})

        threading.Timer(0.5, report).start()

    nodes = {"there": types.SimpleNamespace(error="")}
    hosts = types.SimpleNamespace(remote_nodes=nodes, stay_connected=stay_connected)
    ConnectedRun(run, hosts).watch_hosts()
    assert reports == ["there"]
