"""The checks of the CSV before a start: its actors fill rounds, and leave no learner alone."""

from types import SimpleNamespace

import pytest

from launcher.checks.run import check_assignment, check_rounds
from launcher.plan.workers_csv import Worker

LEARNERS = [Worker(line, "learner", "localhost") for line in (2, 3)]


def _run(rows, **more):
    learners = [row for row in rows if row.job == "learner"]
    return SimpleNamespace(workers=rows, learners=learners, **more)


def _said(columns, *actors):
    rows = [
        *LEARNERS,
        *(Worker(line, "actor", "far", **each) for line, each in enumerate(actors, 4)),
    ]
    found = list(check_rounds(_run(rows, round_columns=columns)))
    assert all(each.ok is False for each in found)
    return [(each.message, each.remedy) for each in found]


def test_environments_of_each_row_must_fill_rounds_exactly():
    rows = {"num_envs": 5, "count": 2}, {"num_envs": 8}, {"num_envs": 12}, {}
    first, second = (message for message, _ in _said(16, *rows))
    assert first.startswith("row 4 (far), column num_envs: ")
    assert first.endswith("use --num_envs=1, 2, 4, 8 or 16, or --batch_size=20")
    assert second.startswith("row 6 (far), column num_envs: ")
    assert second.endswith(", or --batch_size=24")
    assert _said(0, *rows) == []


def test_each_learner_needs_an_actor():
    ((message, remedy),) = _said(16, {})
    assert message.startswith("each of 2 learners trains on rounds of its own actors")
    assert remedy.startswith("give the CSV at least 2 actors")
    assert _said(16, {"count": 2}) == _said(16, {}, {}) == _said(16) == _said(0, {}) == []


def _without_actors(flags, *actors):
    rows = [*LEARNERS, *(Worker(4, "actor", "far", **each) for each in actors)]
    return [
        (each.ok, each.message, each.remedy) for each in check_assignment(_run(rows, flags=flags))
    ]


@pytest.mark.parametrize("flags", [{"learner_assignment": "fixed"}, {"inference": "learner"}])
def test_actors_that_stay_with_their_learner_must_leave_none_without(flags):
    rows = {"count": 2, "learner": 1}, {"learner": 1}
    ((ok, message, remedy),) = _without_actors(flags, *rows)
    assert ok is False
    assert message.startswith("learner 0 has none")
    assert remedy.startswith("give a row of the CSV learner=0, or ")
    assert _without_actors({"learner_assignment": "balance"}, *rows) == [], "actors move to it"
    assert _without_actors(flags, {"count": 2}) == []
    assert _without_actors(flags, {"learner": 1}, {}, {}) == []
    assert _without_actors(flags) == [], "they may join later"
