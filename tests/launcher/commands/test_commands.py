"""The frontend's commands: which one the flags ask for, and what --stop, --save and --logs do.

`test_frontend` and `test_other_hosts` have real runs.
"""

import dataclasses
from types import SimpleNamespace

import pytest
from large_run import LargeRun
from run_states import ShownRun, make_state

from impala_mm.config.settings import Config
from impala_mm.records.run_folder import take_save_request
from launcher.commands import dispatch, manage
from launcher.follow import controller, names
from launcher.follow.followed_run import FollowedRun
from launcher.plan.request import Request, UserError
from launcher.plan.settings import LauncherConfig


def _main(**config):
    return dispatch.main(Request(LauncherConfig(**config), given=[*config]))


@pytest.mark.parametrize("left_by", [{}, {"attach": True}, {"attach": True, "detach": True}])
def test_a_controller_may_have_the_command_of_the_frontend_that_leaves_it(monkeypatch, left_by):
    assert "--control" in controller.command_of(["frontend"], "impala")
    monkeypatch.setitem(dispatch.COMMANDS, "control", lambda run, request: 7)
    monkeypatch.setattr(names, "find", lambda name, given: dispatch.Run(name))
    assert _main(control=True, **left_by) == 7


def test_two_commands_at_once_are_refused():
    with pytest.raises(UserError, match="--dry_run and --stop are two commands: give one of them"):
        _main(stop=True, dry_run=True)


def test_a_stop_is_requested_again_until_the_learners_have_ended(tmp_path, monkeypatch):
    """A host that has just been connected to may not have taken the first request."""
    monkeypatch.setattr(manage, "REPEAT_SECONDS", 0.0)
    requests = []
    monkeypatch.setattr(FollowedRun, "request_stop", lambda self, mode: requests.append(mode))

    def states():
        return {"learners": make_state(state="ended" if len(requests) == 2 else "running")}

    hosts = SimpleNamespace(remote_nodes={"there": None})
    manage._wait_for_learners(FollowedRun(ShownRun(states=states), hosts))
    assert requests == ["save", "save"]


def test_without_the_csv_of_the_start_another_one_is_asked_for(tmp_path):
    csv = tmp_path / "workers.csv"
    csv.write_text("job,ip\nlearner,localhost\n")
    record = SimpleNamespace(name="impala", csvs=[str(csv)])
    request = SimpleNamespace(given=[])
    assert [row.job for row in manage.read_rows(request, record)] == ["learner"]
    other = csv.rename(tmp_path / "moved.csv")
    with pytest.raises(UserError, match=r"workers.csv, with which impala was started, is gone: "):
        manage.read_rows(request, record)
    config = SimpleNamespace(workers_csv_path=str(other))
    request = SimpleNamespace(given=["workers_csv_path"], launcher=config)
    assert [row.ip for row in manage.read_rows(request, record)] == ["localhost"]


def test_logs_are_as_large_as_at_the_runs_start_unless_it_is_given(monkeypatch, tmp_path):
    """Processes that a later frontend starts have such logs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = LargeRun("night", tmp_path / "pong", actors=2, hosts=1).run
    flags = run.record.flags | {"log_max_mb": "3.0"}
    run.write_record(dataclasses.replace(run.record, flags=flags))
    for given, size in (({}, 3.0), ({"log_max_mb": 5.0}, 5.0)):
        request = Request(LauncherConfig(), Config(**given), [*given])
        with manage.connected(run, request) as followed:
            assert followed.log_max_mb == size


def test_learners_that_are_running_are_asked_once_and_others_are_not(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    large = LargeRun("night", tmp_path / "pong", actors=2, hosts=1)
    assert not take_save_request(large.logdir)
    assert _main(save=True, tmux_sess="night") == 0
    assert f"the learners save a checkpoint; results: {large.logdir}" in capsys.readouterr().out
    assert take_save_request(large.logdir)
    assert not take_save_request(large.logdir)
    large.write_state("learners", state="failed", code=1)
    with pytest.raises(UserError, match="night has no learners that are running"):
        _main(save=True, tmux_sess="night")
    assert not take_save_request(large.logdir)
