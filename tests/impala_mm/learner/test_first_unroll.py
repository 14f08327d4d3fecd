"""What a learner prints before the first unroll, and when it knows that none will come."""

from types import SimpleNamespace

import pytest

from impala_mm.algorithms.interface import Algorithm
from impala_mm.learner import watching
from impala_mm.learner.watching import FirstUnroll

WHY = "no environment has completed a step"


@pytest.fixture
def clock(monkeypatch):
    """Return the time, which a test changes."""
    now = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    return now


class Wait:
    """A wait for the first unroll of this many actors."""

    def __init__(self, expected):
        self.said = []
        learner = SimpleNamespace(offline_left=0, algorithm=Algorithm())
        self._status = SimpleNamespace(learner=learner, has_received=False, say=self.said.append)
        self.set(0)
        self.wait = FirstUnroll(self._status)
        self.wait._expected = expected

    def set(self, connected, gave_up=(), mistakes=()):
        self._status.num_actors = lambda: connected
        self._status.gave_up, self._status.mistakes = lambda: gave_up, lambda: mistakes

    def why_none_comes(self, *counts):
        self.set(*counts)
        return self.wait.why_none_comes()


@pytest.mark.parametrize(
    ("expected", "connected", "gave_up", "line"),
    [(3, 2, 1, "2 of 3 actors connected, 1 gave up"), (None, 1, 0, "1 actors connected")],
)
def test_the_line_says_what_the_run_waits_for_and_for_how_long(
    clock, expected, connected, gave_up, line
):
    wait = Wait(expected)
    clock[0] += 25.3
    wait.set(connected, range(gave_up))
    assert wait.wait.describe() == f"no unroll yet: {line} (25 s)"


def test_a_run_whose_actors_all_gave_up_ends_and_waits_five_minutes_for_unknown_ones(clock):
    wait = Wait(2)
    assert wait.why_none_comes(0, {}, {}) == ""
    assert wait.why_none_comes(0, {0: WHY}, {}) == "", "the other one is starting"
    assert wait.why_none_comes(1, {0: WHY, 1: "?"}, {}) == ""
    assert f"all 2 actors gave up (actor 0: {WHY})" in wait.why_none_comes(0, {1: "?", 0: WHY}, {})
    wait = Wait(None)
    assert wait.why_none_comes(0, {0: WHY}, {}) == ""
    clock[0] += 299
    assert wait.why_none_comes(0, {0: WHY}, {}) == ""
    clock[0] += 2
    assert wait.why_none_comes(1, {0: WHY}, {}) == "", "another one has joined, or the same again"
    assert f"the only actor gave up (actor 0: {WHY})" in wait.why_none_comes(0, {0: WHY}, {})


def test_a_run_whose_actors_all_send_invalid_unrolls_ends_after_some_seconds(clock):
    wait, wrong = Wait(3), {1: "its action contains 7, and there are 2 choices"}
    assert wait.why_none_comes(2, {}, wrong) == "", "valid ones may follow"
    clock[0] += 60
    assert wait.why_none_comes(2, {}, wrong) == "", "another actor is starting"
    assert wait.why_none_comes(2, {0: WHY}, wrong) == "", "and one of those is still left"
    ended = wait.why_none_comes(2, {0: WHY}, wrong | {2: "x"})
    assert "actor 1" in ended
    assert wrong[1] in ended


def test_one_actor_with_invalid_unrolls_does_not_end_a_run_whose_others_start_for_minutes(clock):
    wait = Wait(None)
    wait.why_none_comes(1, {}, {0: "x"})
    clock[0] += 20
    assert wait.why_none_comes(2, {}, {0: "x"}) == "", "the other one may send a valid one"
    assert wait.why_none_comes(1, {}, {}) == "", "only the other one is left"
    for why in ("its first one has just come", "the next one may take as long as the first"):
        clock[0] += 20
        assert wait.why_none_comes(1, {}, {1: "y"}) == "", why
    clock[0] += 20
    assert "actor 1" in wait.why_none_comes(1, {}, {1: "y"})
    assert wait.why_none_comes(2, {}, {1: "y"}) == ""
    clock[0] += 300
    assert wait.why_none_comes(2, {}, {1: "y"})


def test_the_lines_of_a_long_wait_become_rarer(clock):
    wait = Wait(2)
    for clock[0] in range(100, 400):
        wait.wait.say_due_line()
    printed = [int(line.split("(")[1].split()[0]) for line in wait.said]
    assert printed == [5, 10, 20, 40, 80, 140, 200, 260]
