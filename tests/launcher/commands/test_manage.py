"""`--stop`, whose request a host may miss, and `--logs`; `test_other_hosts` stops real runs."""

import contextlib
from types import SimpleNamespace

import pytest
from run_states import ShownRun, make_state

from launcher.commands import manage
from launcher.follow.followed_run import FollowedRun
from launcher.plan.request import UserError


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


def test_a_log_is_printed_in_colour_and_controls_no_terminal(tmp_path, monkeypatch, capsys):
    log = tmp_path / "actor-0.log"
    log.write_text("\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J \x1b[31mred\x1b[0m\n")
    run = SimpleNamespace(
        states=lambda: {"actor-0": make_state("actor-0", log=str(log))},
        is_running=lambda: False,
        record=SimpleNamespace(host_id_of=lambda name: ""),
    )
    request = SimpleNamespace(launcher=SimpleNamespace(logs="actor-0"))
    monkeypatch.setattr(manage, "connected", lambda *_, **__: contextlib.nullcontext())
    assert manage.show_log(run, request) == 0
    printed = r"\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J " + "\x1b[31mred\x1b[0m\n"
    assert capsys.readouterr().out == printed
