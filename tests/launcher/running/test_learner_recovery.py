"""What restarts learners, with stand-ins for hosts; `test_far_training` has real ones."""

import dataclasses
from types import SimpleNamespace

import pytest

from launcher.remote.remote_node import OperationFailed
from launcher.running import learner_starts
from launcher.running.learner_recovery import LearnerRecovery

_USED, _LOST, _ADDED = "10.0.0.1", "10.0.0.2", "10.0.0.3"


@dataclasses.dataclass
class Learners:
    """The learners' process, as far as a plan needs it."""

    command: list[str]


def _worker(ip):
    return SimpleNamespace(job="learner", ip=ip)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a recovery of a run whose CSV has got another learner row, and what it does."""
    did = []
    record = SimpleNamespace(
        **{"processes": ["learners"], "flags": {}, "learners": ["command"], "shared": False},
        learner_places=[_USED],
        first_learner_places=[_USED, _LOST],
        host_id_of=lambda name: _USED,
    )
    states = {"learners": {"state": "stopped"}}
    run = SimpleNamespace(folder=tmp_path, record=record)
    followed = SimpleNamespace(
        run=run,
        learners=states["learners"],
        change_record=lambda entry, **changes: did.append((entry, changes)),
        hosts=None,
        config=SimpleNamespace(restart_learners=True, rejoin_secs=1, stop_secs=1),
        say=did.append,
        workers=[_worker(ip) for ip in (_USED, _LOST, _ADDED)],
        is_away=lambda host_id: False,
        orders=None,
        place_of=lambda worker: worker.ip,
        find_installations=lambda rows: None,
        control=SimpleNamespace(request_stop=lambda *order: did.append(order)),
    )
    recovery = LearnerRecovery(followed)
    monkeypatch.setattr(recovery._starts, "start_on", lambda rows, _: not did.append(_ips(rows)))
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

    monkeypatch.setattr(made.recovery._starts, "start_on", fail)
    before = made.followed.workers
    _take_back(made)
    entry, changes = made.did[-2]
    assert (entry, changes["learner_places"]) == ("learners", [_USED]), "the hosts of before"
    assert made.followed.workers is before
    assert made.did[-1] == "could not restart the learners: orders; retry in 30 s"


def test_learners_that_are_stopped_while_they_save_are_not_restarted(made, monkeypatch):
    def wait(seconds):
        (made.followed.run.folder / "stop").write_text("save")

    monkeypatch.setattr(made.recovery._starts, "wait_for_end", wait)
    _take_back(made)
    assert made.did[-1] == ("save", "learners")


@pytest.mark.parametrize(
    ("host_id", "does"),
    [
        (_USED, [("plan", ["experiment.py", "--learner_hosts=a:8001"]), ("introduce", _USED, {})]),
        (_LOST, [("supervisor", _LOST)]),
        (_ADDED, []),
    ],
)
@pytest.mark.parametrize("has_plan", [False, True])
def test_a_host_that_has_lost_its_plan_gets_its_part_of_the_learners_again(
    made, monkeypatch, host_id, does, has_plan
):
    starts, done = made.recovery._starts, []
    made.followed.workers = [_worker(_LOST), _worker(_USED), _worker(_ADDED)]
    made.followed.plan = lambda process, record: done.append(("plan", process.command))
    made.followed.installation_of = lambda row: SimpleNamespace(host_id=row.ip)
    starts._hosts = SimpleNamespace(call=lambda host, op, name: has_plan)
    made.record.flags, made.record.id = {}, "first"
    learners = Learners(command=["experiment.py", "--learner_hosts=a:0"])
    monkeypatch.setattr(starts, "_make_learners", lambda rows, flags: (learners, ["a:8001"]))
    monkeypatch.setattr(
        learner_starts.process_plan,
        "other_installations",
        lambda rows, of: [of(row) for row in rows if row.ip != rows[0].ip],
    )
    monkeypatch.setattr(
        learner_starts.mpirun_daemons,
        "start_supervisor",
        lambda run, hosts, there, *rest: done.append(("supervisor", there.host_id)),
    )
    monkeypatch.setattr(
        learner_starts.mpirun_daemons,
        "introduce",
        lambda run, hosts, first, listening: done.append(("introduce", first, listening)),
    )
    made.recovery.plan_on(host_id, made.record)
    assert done == ([] if has_plan else does)


def test_a_plan_that_the_csv_no_longer_has_is_refused(made):
    made.recovery._starts._hosts = SimpleNamespace(call=lambda host, op, name: False)
    made.followed.workers = [_worker(_USED)]
    with pytest.raises(OperationFailed, match="the learners' rows of the CSV have changed"):
        made.recovery.plan_on(_LOST, made.record)
