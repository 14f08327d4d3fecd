"""Whether learners that stopped are being restarted; `test_far_training` tests that they are."""

import contextlib
import dataclasses
import time
from types import SimpleNamespace

import pytest
from run_states import ShownRun, make_state

from launcher.follow import follow
from launcher.follow.follow import Follower
from launcher.follow.followed_run import FollowedRun
from launcher.follow.learner_recovery import RESTARTING
from launcher.follow.recovery import Recovery
from launcher.supervise.run_registry import ProcessEntry, Record, Run, boot_id


def _recovery(folder, restarts=True):
    config = SimpleNamespace(restart_learners=restarts, rejoin_secs=1)
    return Recovery(FollowedRun(SimpleNamespace(folder=folder), None, config))


def test_a_stop_by_the_user_counts_more_than_a_restart(tmp_path):
    recovery = _recovery(tmp_path)
    assert not recovery.restarts_learners("stopped")
    (tmp_path / RESTARTING).touch()
    assert recovery.restarts_learners("stopped")
    (tmp_path / "stop").write_text("save")
    assert not recovery.restarts_learners("stopped")


def test_a_frontend_that_restarts_nothing_waits_only_for_one_that_does(tmp_path):
    first, second = _recovery(tmp_path), _recovery(tmp_path, restarts=False)
    (tmp_path / RESTARTING).touch()
    assert first.restarts_learners("lost")  # it recovers the run
    assert second.restarts_learners("failed")
    (tmp_path / "another run").mkdir()
    alone = _recovery(tmp_path / "another run", restarts=False)
    (tmp_path / "another run" / RESTARTING).touch()
    assert not alone.restarts_learners("failed")


def test_a_restart_of_the_learners_keeps_what_was_applied_meanwhile(tmp_path):
    run = Run("impala", tmp_path)
    run.folder.mkdir()
    learners = ProcessEntry("learners", "learner", "a", place="a", log="old")
    actor = ProcessEntry("actor-7", "actor", "a", place="a")
    rest = (time.time(), boot_id(), "/l", "", [learners], {}, [], 7)
    run.write_record(Record("impala", "1", *rest))
    followed = FollowedRun(run, None)
    applied = dataclasses.replace(run.record, processes=[learners, actor], next_actor=8)
    run.write_record(applied)
    moved = [
        dataclasses.replace(learners, log="new", place="b"),
        dataclasses.replace(learners, name="learners-1"),
    ]
    changed = followed.change_record(moved, shared=True)
    assert changed == run.record
    assert (changed.next_actor, changed.learner_places) == (8, ["b", "a"])
    assert changed.processes == [*moved, actor]


def test_a_run_that_is_stopped_while_hosts_are_asked_is_not_recovered(tmp_path):
    """Another terminal's --stop removes the record at any moment."""
    run = ShownRun(folder=tmp_path, record=None, states=dict)
    run.locked = lambda wait: contextlib.nullcontext()
    config = SimpleNamespace(restart_learners=True, rejoin_secs=1, lost_secs=60)
    followed = FollowedRun(run, None, config)
    record = SimpleNamespace(host_id_of=lambda name: "", learner_places=[""])
    record.first_learner_places = [""]
    recovery = Recovery(followed)
    recovery._restore(record, 1.0)
    recovery._learners.check(record, 1.0)
    assert followed.change_record(shared=True) is None


@pytest.mark.parametrize(("restarting", "code"), [(True, 0), (False, 7)])
def test_a_run_whose_learners_are_being_restarted_has_not_ended(
    tmp_path, monkeypatch, restarting, code
):
    coming = ["failed", "stopped", "running", "ended"]

    def states():
        return {"learners": make_state(state=coming[0], code=7)}

    def recover():
        if restarting and len(coming) > 1:
            coming.pop(0)

    run = ShownRun(states=states, folder=tmp_path, record=None)
    followed = FollowedRun(run, None, say=lambda said: None)
    followed.end_remaining = lambda *_: []
    recovery = SimpleNamespace(
        recover=recover, restarts_learners=lambda state: restarting and state != "ended"
    )
    monkeypatch.setattr(follow, "Recovery", lambda followed: recovery)
    assert Follower(followed, tmp_path).follow() == code
