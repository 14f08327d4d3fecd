"""What restarts learners, with stand-ins for hosts; `test_far_training` has real ones."""

from types import SimpleNamespace

import pytest
from run_states import ShownRun, make_state

from launcher.follow.learner_recovery import LearnerRecovery
from launcher.plan.workers_csv import Worker
from launcher.supervise.run_registry import ProcessEntry

_USED, _LOST, _ADDED = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def _worker(ip):
    return Worker(0, "learner", ip)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a recovery of a run whose CSV has got another learner row, and what it does."""
    did = []
    record = SimpleNamespace(
        learner_processes=[ProcessEntry("learners", "learner", _USED, _USED)],
        flags={},
        learners=["command"],
        shared=False,
        learner_places=[_USED],
        first_learner_places=[_USED, _LOST],
        host_id_of=lambda name: _USED,
    )
    stopped = make_state(state="stopped")
    states = {"learners": stopped}
    run = ShownRun(folder=tmp_path, record=record, states=lambda: states)
    followed = SimpleNamespace(
        run=run,
        learners=stopped,
        change_record=lambda entry, **changes: did.append((entry, changes)),
        hosts=None,
        config=SimpleNamespace(restart_learners=True, rejoin_secs=1, stop_secs=1),
        say=did.append,
        workers=[_worker(ip) for ip in (_USED, _LOST, _ADDED)],
        is_away=lambda host_id: False,
        find_installations=lambda rows: None,
        request_stop=lambda *order: did.append(order),
    )
    recovery = LearnerRecovery(followed)
    monkeypatch.setattr(recovery, "_start_on", lambda rows, _: not did.append(_ips(rows)))
    return SimpleNamespace(recovery=recovery, did=did, record=record, followed=followed)


def _ips(rows):
    return [row.ip for row in rows]


def _take_back(made, now=10.0):
    for seconds in (0.0, now):
        made.recovery._take_back_hosts(made.record, seconds)


def test_only_a_host_with_which_the_learners_began_is_taken_back(made):
    _take_back(made)
    assert made.did[0].startswith(f"{_LOST} answers again")
    assert ("save", "learners") in made.did
    assert made.did[-1] == [_USED, _LOST]


def test_a_restart_with_a_returned_host_that_fails_leaves_the_learners_without_it(
    made, monkeypatch
):
    def fail(rows, record):
        made.followed.workers = rows
        raise FileNotFoundError("orders")

    monkeypatch.setattr(made.recovery, "_start_on", fail)
    before = made.followed.workers
    _take_back(made)
    entry, changes = made.did[-2]
    assert entry == made.record.learner_processes, "the hosts of before"
    assert changes["learners"] == ["command"]
    assert made.followed.workers is before
    assert made.did[-1] == "could not restart the learners: orders; retry in 30 s"


def test_learners_that_are_stopped_while_they_save_are_not_restarted(made, monkeypatch):
    def wait(names, seconds):
        (made.followed.run.folder / "stop").write_text("save")

    monkeypatch.setattr(made.recovery, "_wait_for_end", wait)
    _take_back(made)
    assert made.did[-1] == ("save", "learners")
