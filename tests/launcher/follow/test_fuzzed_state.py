"""Damaged state files of a run: every command reads the rest, or names the file."""

import contextlib
import json
import os
import time
from pathlib import Path

import pytest
from damaging import damaged, damaged_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.follow import status
from launcher.follow.connected_run import add_pending_stop, pending_stops_on
from launcher.follow.console import make_console
from launcher.follow.follow import failure_message
from launcher.supervise.liveness import HeartbeatMonitor
from launcher.supervise.procfs import start_time
from launcher.supervise.run_registry import Record, Run, UnreadableRecord, boot_id

_OPTIONS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
_FAILURE = {"time": 1.0, "code": 1, "why": "it ended", "lines": ["a line"], "next": "it waits"}
_FILES = (
    *("run.json", "learners/state.json", "actor-0/state.json", "learners/beat"),
    "controller.json",
)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a run of which this process is the supervisor of all processes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made, logdir = Run("night"), tmp_path / "logs"
    made.create_state()
    logdir.mkdir()
    me = [os.getpid(), start_time(os.getpid())]
    names = {"learners": "learner", "actor-0": "actor"}
    processes = [{"name": n, "job": job, "host": "h", "log": "l"} for n, job in names.items()]
    for each in processes:
        folder = made.folder / each["name"]
        folder.mkdir()
        failed = each["name"] == "actor-0"
        state = each | {
            **{"state": "failed" if failed else "running", "code": 1 if failed else None},
            **{"supervisor": me, "process": None, "restarts": 2, "since": 1.0, "last": "x"},
            **{"failure": _FAILURE if failed else None, "learner_hosts": ["h:1"], "awaits": []},
            **{"cpu": 3, "memory": 5.5, "frames_per_second": 3.5, "silent": 0.1, "time": 1.0},
        }
        (folder / "state.json").write_text(json.dumps(state))
    (made.folder / "learners" / "beat").write_text(json.dumps({"frames": 5, "gave_up": ""}))
    entry = {
        **{"process": me, "boot": boot_id(), "host": "h", "since": 1.0, "beat": 1.0, "log": "l"},
        **{"ended": "", "unreached": ["h"], "logins": {"a key": 1}, "ready": True},
        **{"command": ["python"], "folder": "/"},
    }
    (made.folder / "controller.json").write_text(json.dumps(entry))
    record = Record(
        *("night", "1", time.time(), boot_id(), str(logdir), "", processes),
        *({"learner_hosts": "h:1"}, ["python", "x"], 1),
    )
    made.write_record(record)
    row = {"frames": 5, "frames_per_second": 3.0, "episode_return": 1.0, "verdict": "it learns"}
    (logdir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return made


def _use(run):
    """Do what the commands that follow and show a run do, which report this error."""
    console = make_console()
    with contextlib.suppress(UnreadableRecord):
        shown = status.snapshot(run)
        if shown:
            json.dumps(shown)
            with console.capture():
                console.print(status.picture(shown, 5, console))
        for state in run.states().values():
            if state.failure:
                failure_message(state, state.failure, 1)
        run.is_running()
        run.local_states()
        run.why_away("h")
    monitor = HeartbeatMonitor.__new__(HeartbeatMonitor)
    monitor._path = run.folder / "learners" / "beat"
    monitor.frames()
    monitor.gave_up()


@pytest.mark.parametrize("name", [*_FILES, "metrics.jsonl"])
def test_a_damaged_file_ends_no_command(run, name):
    path = run.folder / name
    if name == "metrics.jsonl":
        path = Path(run.record.logdir) / name
    whole = path.read_bytes()

    @settings(max_examples=40, **_OPTIONS)
    @given(damaged_json(whole))
    def each(content):
        path.write_bytes(content + b"\n" * (name == "metrics.jsonl"))
        _use(run)

    each()


def test_a_run_without_processes_is_shown(run):
    path = run.folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processes": []}))
    assert status.snapshot(run)
    _use(run)


def test_damaged_files_of_a_users_runs_count_as_none(run):
    add_pending_stop("host", "start")
    assert pending_stops_on("host") == ["start"]
    path = run.folder.parents[1] / "unfinished.json"
    whole = path.read_bytes()

    @settings(max_examples=50, **_OPTIONS)
    @given(st.one_of(damaged_json(whole), damaged(whole)))
    def each(content):
        path.write_bytes(content)
        assert all(isinstance(start, str) for start in pending_stops_on("host"))
        add_pending_stop("host", "another")
        assert pending_stops_on("host")[-1] == "another"

    each()
    path.write_text('{"host": ["start"], "elsewhere": Infinity, "": ["b"]}')
    add_pending_stop("host", "another")
    assert json.loads(path.read_text()) == {"host": ["start", "another"], "": ["b"]}
