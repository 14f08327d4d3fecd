"""Later commands of a run use the flags of its start that they are not given."""

import dataclasses
import json
import math

import pytest

from launcher.follow import remembered
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.supervise.run_registry import Record, Run, boot_id

STARTED = LauncherConfig(
    env=("A=1", "SECRET"), setup="module load cuda", stall_secs=0, restart_learners=True
)


def _start(run, config):
    """Record a run that was started with these flags."""
    rest = (0.0, boot_id(), "/l", "", [], {}, [], 0)
    run.write_record(Record("impala", "id", *rest, start_flags=remembered.describe(config)))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    run = Run("impala", tmp_path)
    run.folder.mkdir()
    _start(run, STARTED)
    monkeypatch.delenv("SECRET")  # the next command comes from another shell
    return run


def _used(run, given=(), **config):
    request = Request(LauncherConfig(**config), given=given)
    return remembered.use(run, request).launcher


def test_a_flag_of_the_start_counts_unless_it_is_given_again(run):
    assert _used(run) == LauncherConfig(
        env=("A=1", "SECRET=hunter2"), setup="module load cuda", stall_secs=0, restart_learners=True
    )
    found = _used(run, ["restart_learners", "env"], restart_learners=False, env=("B=2",))
    assert (found.restart_learners, found.env, found.stall_secs) == (False, ("B=2",), 0)


def test_that_there_is_no_controller_is_remembered(run):
    _start(run, LauncherConfig(controller="none"))
    assert _used(run).controller == "none"
    assert _used(run, ["controller"], controller="here").controller == "here"


def test_only_the_user_can_read_them_and_no_other_host_gets_them(run):
    path = run.folder / "run.json"
    assert "hunter2" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in json.dumps(run.record.for_hosts())


@pytest.mark.parametrize(
    "flags", [{}, {"env": 3, "stall_secs": "x", "setup": None, "restart_learners": 1}]
)
def test_damaged_flags_and_none_leave_the_defaults(run, flags):
    run.write_record(dataclasses.replace(run.record, start_flags=flags))
    assert _used(run) == LauncherConfig()
    (run.folder / "run.json").unlink()
    assert _used(run, stop_secs=3) == LauncherConfig(stop_secs=3)


def test_infinite_seconds_are_remembered_too(run):
    _start(run, LauncherConfig(lost_secs=math.inf))
    json.loads((run.folder / "run.json").read_text(), parse_constant=pytest.fail)
    assert _used(run).lost_secs == math.inf
