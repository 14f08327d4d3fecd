"""The checks of the CSV before a start: its actors must be able to fill rounds."""

from launcher.checks.preflight import check_rounds
from launcher.plan.workers_csv import Worker

LEARNERS = [Worker(line, "learner", "localhost") for line in (2, 3)]


def _said(columns, *actors, stays=False):
    rows = [
        *LEARNERS,
        *(Worker(line, "actor", "far", **each) for line, each in enumerate(actors, 4)),
    ]
    found = check_rounds(rows, columns, stays)
    assert all(each.ok is False for each in found)
    return [(each.message, each.remedy) for each in found]


def test_environments_of_each_row_must_fill_rounds_exactly():
    rows = {"num_envs": 5, "count": 2}, {"num_envs": 8}, {"num_envs": 12}, {}
    why = (
        "the algorithm trains on rounds of --batch_size=16 unrolls, one for each environment, "
        "which actors with --num_envs={0} cannot fill exactly: use --num_envs=1, 2, 4, 8 or 16, "
        "or --batch_size={1}"
    )
    assert _said(16, *rows) == [
        (f"row 4 (far), column num_envs: {why.format(5, 20)}", ""),
        (f"row 6 (far), column num_envs: {why.format(12, 24)}", ""),
    ]
    assert _said(0, *rows) == []


def test_each_learner_needs_an_actor():
    ((message, remedy),) = _said(16, {})
    assert message.startswith("each of 2 learners trains on rounds of its own actors, and there is")
    assert remedy == "give the CSV at least 2 actors, by more rows or the column count"
    assert _said(16, {"count": 2}) == _said(16, {}, {}) == _said(16) == _said(0, {}) == []


def test_actors_that_stay_with_their_learner_must_leave_none_without():
    rows = {"count": 2, "learner": 1}, {"learner": 1}
    ((message, remedy),) = _said(16, *rows, stays=True)
    assert message.startswith("learner 0 has no actor to play its rounds, since actors stay with")
    assert remedy == "give a row of the CSV learner=0, or leave the column learner empty"
    assert _said(16, *rows) == [], "actors move to the learner that has none"
    assert _said(16, {"count": 2}, stays=True) == _said(16, {"learner": 1}, {}, {}, stays=True) == []
