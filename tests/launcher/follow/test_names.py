"""Tests of the names of runs, with records of runs that nothing has started."""

import dataclasses
import json
import os
import shutil
import subprocess
import time

import pytest

from launcher.follow import names
from launcher.supervise import file_lock, procfs
from launcher.supervise.run_registry import Record, Run, RunInUse, boot_id, describe_writer
from launcher.supervise.tmux import TmuxError

needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="there is no tmux here")


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Give the test a state folder and a tmux server of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.delenv("TMUX", raising=False)


def record(name, logdir, state):
    """Write the record of a run whose learners are in this state, under this process."""
    run = Run(name)
    run.forget()
    run.create_state()
    learners = {"name": "learners", "job": "learner", "host": "localhost", "place": ""}
    run.write_record(
        Record(
            *(name, f"id of {name}", time.time(), boot_id(), str(logdir), ""),
            *([learners | {"log": f"{logdir}/learners.log"}], {}, [], 0),
        )
    )
    (run.folder / "learners").mkdir()
    own = [os.getpid(), procfs.start_time(os.getpid())]
    content = learners | {"state": state, "supervisor": own, "process": None}
    (run.folder / "learners" / "state.json").write_text(json.dumps(content))
    return run


def reserve(name="impala", is_requested=False, logdir=""):
    """Reserve a name for a moment; return it, and what was printed."""
    said = []
    with names.reserve(name, is_requested, str(logdir), said.append) as run:
        return run.name, said


def test_a_taken_name_gets_the_next_free_number():
    assert reserve() == ("impala", [])
    record("impala", "/a", "running")
    name, said = reserve()
    assert name == "impala-2"
    assert "a run named impala is running" in said[0]
    record("impala-2", "/b", "ended")
    assert reserve(logdir="/c")[0] == "impala-3"
    assert reserve("mine") == ("mine", [])


def test_an_ended_run_keeps_its_name_until_it_is_resumed_or_stopped(tmp_path):
    record("impala", tmp_path, "stopped")
    name, said = reserve(logdir=tmp_path / "other")
    assert name == "impala-2"
    assert "the run impala has ended" in said[0]
    assert "--stop --tmux_sess=impala removes them" in said[0]
    (tmp_path / "link").symlink_to(tmp_path)
    record("impala-7", tmp_path / "seven", "failed")
    assert reserve(logdir=tmp_path / "link") == ("impala", []), "the same run continues"
    assert reserve(logdir=tmp_path / "seven") == ("impala-7", [])
    assert reserve(is_requested=True, logdir=tmp_path) == ("impala", [])
    Run("impala").forget()
    assert reserve() == ("impala", [])


@pytest.mark.parametrize(
    ("state", "why"), [("running", "a run named mine is running"), ("ended", "the run mine has")]
)
def test_a_name_that_was_asked_for_is_refused_if_it_is_taken(state, why):
    record("mine", "/a", state)
    with pytest.raises(RunInUse, match=f"^{why}.*--stop --tmux_sess=mine"):
        reserve("mine", is_requested=True, logdir="/b")


def test_two_frontends_at_once_get_two_names_but_not_one_folder(tmp_path):
    starting = "another frontend is starting or changing impala"
    with names.reserve("impala", False, str(tmp_path), print):
        name, said = reserve(logdir=tmp_path / "other")
        assert name == "impala-2"
        assert starting in said[0]
        with pytest.raises(RunInUse, match=starting):
            reserve(is_requested=True)
        with pytest.raises(RunInUse, match=f"^--logdir={tmp_path}: another frontend"):
            reserve(logdir=tmp_path)
        # The learners' host asks, too, and may share this user's home.
        assert describe_writer(str(tmp_path), starting="impala") == ""
        assert "is starting the run impala" in describe_writer(str(tmp_path), starting="b")
    assert reserve(logdir=tmp_path) == ("impala", [])


def test_a_folder_that_a_run_or_a_process_writes_to_is_refused(tmp_path):
    record("first", tmp_path, "running")
    with pytest.raises(RunInUse, match=f"^--logdir={tmp_path}: the run first .* is writing"):
        reserve("second", is_requested=True, logdir=tmp_path)
    record("first", tmp_path, "ended")
    assert describe_writer(str(tmp_path)) == ""
    lock = file_lock.acquire(tmp_path / "lock")
    os.write(lock, b"4711")  # as a learner does that was started by hand
    with pytest.raises(RunInUse, match="process 4711 is writing"):
        reserve("second", is_requested=True, logdir=tmp_path)
    os.close(lock)
    assert reserve("second", is_requested=True, logdir=tmp_path)[0] == "second"


def test_a_command_without_a_name_is_about_the_only_run_or_the_only_running_one():
    assert names.find("impala", False).name == "impala"
    record("first", "/a", "ended")
    assert names.find("impala", False).name == "first"
    record("second", "/b", "running")
    assert names.find("impala", False).name == "second"
    assert names.find("first", True).name == "first"
    record("third", "/c", "running")
    (Run("third").folder / "run.json").write_text("{}")
    record("fourth", "/d", "running")
    with pytest.raises(RunInUse, match="--tmux_sess=NAME") as error:
        names.find("impala", False)
    runs = [line.split() for line in str(error.value).splitlines()[1:]]
    assert runs[:3] == [
        ["first", "ended,", "/a"],
        ["fourth", "running,", "/d"],
        ["second", "running,", "/b"],
    ]
    assert runs[3][0] == "third"


@needs_tmux
def test_a_session_of_an_earlier_run_without_a_record_is_not_replaced():
    session = ("new-session", "-d", "-s", "impala", "sleep 60")
    mark = (";", "set-option", "-t", "=impala:", "@impala_mm", "1")
    subprocess.run(["tmux", *session, *mark], check=True)
    try:
        assert reserve()[0] == "impala-2"
        with pytest.raises(TmuxError, match="a run without a record: `tmux kill-session -t impala"):
            reserve(is_requested=True)
    finally:
        subprocess.run(["tmux", "kill-server"], check=True)


def test_the_name_of_a_run_of_another_machine_that_shares_the_home_is_taken(tmp_path):
    run = record("impala", tmp_path / "a", "running")
    of_another = dataclasses.replace(run.record, boot="another", started_from="desk1")
    run.write_record(of_another)
    name, said = reserve()
    assert name == "impala-2"
    assert "the run impala was started on desk1, where it may be running" in said[0]
    assert "--stop" not in said[0]
