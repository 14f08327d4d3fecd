"""A run has no actor left some seconds after the last one failed for good."""

import pytest

from launcher.supervise import process_state
from launcher.supervise.process_state import ActorWatch, State


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(process_state.time, "monotonic", lambda: now[0])
    return now


def _actors(states):
    learners = State("learners", "learner", "h", "running")
    return [learners, *(State("actor", "actor", "h", state) for state in states)]


@pytest.mark.parametrize(
    ("states", "ends"),
    [
        (["failed", "failed"], True),
        (["failed", "stopped"], True),  # --apply has removed the second one
        (["failed", "waits"], False),
        (["failed", "lost"], False),
        (["stopped"], False),
        ([], False),
    ],
)
def test_all_actors_have_failed_if_those_that_are_left_have_for_some_seconds(clock, states, ends):
    watch = ActorWatch()
    for seconds, is_late in ((0, False), (4, False), (2, True), (9, True)):
        clock[0] += seconds
        assert watch.have_all_failed(_actors(states)) == (ends and is_late)


def test_an_actor_that_is_added_in_time_keeps_the_run_running(clock):
    watch = ActorWatch()
    for states in (["failed"], ["failed", "starting"], ["failed", "failed"]):
        assert not watch.have_all_failed(_actors(states))
        clock[0] += 4
    clock[0] += 2
    assert watch.have_all_failed(_actors(["failed", "failed"]))
