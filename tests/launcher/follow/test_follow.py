"""What a frontend prints of failures: each traceback once, however many actors have it."""

import os
import pty
import signal
from types import SimpleNamespace

import pytest
from run_states import ShownRun, make_state

from launcher.follow import follow
from launcher.follow.follow import Follower, RunNews
from launcher.supervise.process_state import Failure

OVER = (
    "00:41:43 it exited with code 1; the run ends\n00:41:43 -- learners: failed, exit code 1 --\n"
)


def _state(name, *lines):
    failure = Failure(1.0, 1, "it exited with code 1", lines, "it ends")
    return make_state(name, "failed", log=f"/{name}.log", failure=failure)


RECOVERY = SimpleNamespace(recover=lambda: None, restarts_learners=lambda state: False)


def _followed(states, say, **functions):
    run = ShownRun(states=lambda: states, name="impala", record=None)
    hosts = SimpleNamespace(remote_nodes={})
    config = SimpleNamespace(mirror_logdir=False, stop_secs=60, controller="here")
    return SimpleNamespace(run=run, hosts=hosts, config=config, say=say, **functions)


def test_lines_that_are_on_the_screen_are_not_printed_again(tmp_path, capsys):
    said, states = [], {}
    news = RunNews(ShownRun(states=lambda: states), tmp_path, said.append, shows_log=True)
    (tmp_path / "learners.log").write_text(f"trains\n[learner] error: no actor\n{OVER}")
    for name in ("actor-0", "actor-1"):
        states[name] = _state(name, f"[{name.replace('-', ' ')}] error: no map", "  step.py")
    states["actor-2"] = _state("actor-2", "[actor 2] error: no licence")
    states |= {name: _state(name) for name in ("actor-3", "actor-4")}
    states["learners"] = _state("learners", "[learner] error: no actor")
    news.print_all()
    assert capsys.readouterr().out == "trains\n[learner] error: no actor\n"
    assert [message.split("\n", 1)[1] for message in said] == [
        "    [actor 0] error: no map\n      step.py\n  it ends; log: /actor-0.log",
        "    its lines are the same as those of actor-0\n  it ends; log: /actor-1.log",
        "    [actor 2] error: no licence\n  it ends; log: /actor-2.log",
        "  it ends; log: /actor-3.log",
        "  it ends; log: /actor-4.log",
        "    its lines are above\n  it ends; log: /learners.log",
    ]


def test_the_key_d_leaves_a_run_that_ctrl_c_is_stopping(tmp_path, monkeypatch):
    """A run that is being stopped gets no controller, for which Ctrl-C would refuse to detach."""
    states = {"learners": make_state()}
    stops, said = [], []
    followed = _followed(states, said.append, request_stop=stops.append)
    keys = iter(["", "d"])
    monkeypatch.setattr(follow, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(follow, "_pressed_keys", lambda: next(keys))
    monkeypatch.setattr(follow, "detached_message", lambda run: f"detached from {run.name}")
    monkeypatch.setattr(follow, "Recovery", lambda followed: RECOVERY)
    follower = Follower(followed, tmp_path)
    follower._signals.append(signal.SIGINT)
    assert follower.follow() == 0
    assert stops == ["save"]
    assert said[-1] == "detached from impala"


def test_ctrl_c_that_also_ends_the_reader_of_the_output_stops_the_run(tmp_path, monkeypatch):
    """Such a reader is `tee`: a terminal sends Ctrl-C to both."""
    states = {"learners": make_state()}
    stops, discarded = [], []

    def stop(mode):
        stops.append(mode)
        states["learners"] = make_state(state="stopped")

    def check_reader():
        if not discarded:
            raise BrokenPipeError

    followed = _followed(states, print, request_stop=stop, end_remaining=lambda *_: [])
    monkeypatch.setattr(follow, "check_reader", check_reader)
    monkeypatch.setattr(follow, "discard_output", lambda: discarded.append(True))
    monkeypatch.setattr(follow, "Recovery", lambda followed: RECOVERY)
    follower = Follower(followed, tmp_path)
    with pytest.raises(BrokenPipeError):
        follower.follow()
    assert not stops, "`| head` ends the frontend, not the run"
    follower._signals.append(signal.SIGINT)
    assert follower.follow() == 130
    assert (stops, discarded) == (["save"], [True])


def test_a_terminal_that_does_not_control_the_frontend_is_none(monkeypatch):
    """So it is in `su -c`; and a background job that reads from its terminal is stopped."""
    terminal, other = pty.openpty()
    with os.fdopen(terminal), os.fdopen(other) as stdin:
        monkeypatch.setattr(follow.sys, "stdin", stdin)
        with follow._single_keys():
            os.write(terminal, b"d")
            assert follow._pressed_keys() == ""

        ours = [os.getpgrp()]
        monkeypatch.setattr(follow.os, "tcgetpgrp", lambda descriptor: ours[0])
        with follow._single_keys():
            os.write(terminal, b"d")
            ours[0] += 1
            assert follow._pressed_keys() == "", "another job is in the foreground"
            ours[0] -= 1
            assert "d" in follow._pressed_keys()


def test_under_nohup_a_frontend_follows_on_when_its_terminal_closes(tmp_path):
    follower = Follower(_followed({}, print), tmp_path)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        follower.install_signal_handlers()
        signal.raise_signal(signal.SIGHUP)
        assert not follower.is_terminated
        signal.raise_signal(signal.SIGTERM)
        assert follower.is_terminated
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
