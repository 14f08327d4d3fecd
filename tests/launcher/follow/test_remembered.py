"""Later commands of a run use the flags of its start that they are not given."""

import json
import math

import pytest

from launcher.follow import remembered
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.supervise.run_registry import Run

STARTED = LauncherConfig(
    env=("A=1", "SECRET"), setup="module load cuda", stall_secs=0, restart_learners=True
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    run = Run("impala", tmp_path)
    run.folder.mkdir()
    remembered.write(run, STARTED)
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
    remembered.write(run, LauncherConfig(controller="none"))
    assert _used(run).controller == "none"
    assert _used(run, ["controller"], controller="here").controller == "here"


def test_only_the_user_can_read_them(run):
    assert (run.folder / "start_flags.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "[]", '{"env": 3, "stall_secs": "x", "setup": null, "restart_learners": 1}']
)
def test_a_damaged_file_and_none_leave_the_defaults(run, content):
    (run.folder / "start_flags.json").write_text(content)
    assert _used(run) == LauncherConfig()
    (run.folder / "start_flags.json").unlink()
    assert _used(run, stop_secs=3) == LauncherConfig(stop_secs=3)


def test_infinite_seconds_are_remembered_too(run):
    remembered.write(run, LauncherConfig(lost_secs=math.inf))
    json.loads((run.folder / "start_flags.json").read_text(), parse_constant=pytest.fail)
    assert _used(run).lost_secs == math.inf
