"""What a learner prints before the first unroll, and when it knows that none will come."""

from types import SimpleNamespace

import pytest

from impala_mm.algorithms.interface import Algorithm
from impala_mm.learner import watching
from impala_mm.learner.watching import FirstUnroll

WHY = "no environment has completed a step"


class Wait:
    """A wait for the first unroll of this many actors."""

    def __init__(self, expected):
        self.said = []
        learner = SimpleNamespace(offline_left=0, algorithm=Algorithm())
        self._status = SimpleNamespace(learner=learner, has_received=False, say=self.said.append)
        self._set(0)
        self.wait = FirstUnroll(self._status)
        self.wait._expected = expected

    def _set(self, connected, gave_up=(), mistakes=()):
        self._status.num_actors = lambda: connected
        self._status.gave_up, self._status.mistakes = lambda: gave_up, lambda: mistakes

    def describe(self, connected, gave_up):
        self._set(connected, range(gave_up))
        return self.wait.describe()

    def why_none_comes(self, connected, gave_up, mistakes):
        self._set(connected, gave_up, mistakes)
        return self.wait.why_none_comes()


@pytest.mark.parametrize(
    ("expected", "connected", "gave_up", "line"),
    [
        (2, 0, 0, "0 of 2 actors connected"),
        (3, 2, 1, "2 of 3 actors connected, 1 gave up"),
        (None, 1, 0, "1 actors connected"),
    ],
)
def test_the_line_says_what_the_run_waits_for_and_for_how_long(
    monkeypatch, expected, connected, gave_up, line
):
    clock = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: clock[0])
    wait = Wait(expected)
    clock[0] += 25.3
    assert wait.describe(connected, gave_up) == f"no unroll yet: {line} (25 s)"


def test_a_run_whose_actors_all_gave_up_ends():
    wait = Wait(2)
    assert wait.why_none_comes(0, {}, {}) == ""
    assert wait.why_none_comes(0, {0: WHY}, {}) == "", "the other one is starting"
    assert wait.why_none_comes(1, {0: WHY}, {}) == ""
    why = f"all 2 actors gave up (actor 0: {WHY}), so no unroll can come"
    assert wait.why_none_comes(0, {1: "?", 0: WHY}, {}) == why


def test_where_others_may_be_started_it_waits_five_minutes_for_them(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: clock[0])
    wait = Wait(None)
    assert wait.why_none_comes(0, {0: WHY}, {}) == ""
    clock[0] += 299
    assert wait.why_none_comes(0, {0: WHY}, {}) == ""
    clock[0] += 2
    assert wait.why_none_comes(1, {0: WHY}, {}) == "", "another one has joined, or the same again"
    why = f"the only actor gave up (actor 0: {WHY}), so no unroll can come"
    assert wait.why_none_comes(0, {0: WHY}, {}) == why


def test_a_run_whose_actors_all_send_invalid_unrolls_ends_after_some_seconds(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: clock[0])
    wait, wrong = Wait(3), {1: "its action contains 7, and there are 2 choices"}
    assert wait.why_none_comes(2, {}, wrong) == "", "valid ones may follow"
    clock[0] += 60
    assert wait.why_none_comes(2, {}, wrong) == "", "another actor is starting"
    assert wait.why_none_comes(2, {0: WHY}, wrong) == "", "and one of those is still left"
    ended = wait.why_none_comes(2, {0: WHY}, wrong | {2: "x"})
    assert "actor 1" in ended
    assert wrong[1] in ended


def test_one_actor_with_invalid_unrolls_does_not_end_a_run_whose_others_start_for_minutes(
    monkeypatch,
):
    clock = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: clock[0])
    wait = Wait(None)
    wait.why_none_comes(1, {}, {0: "x"})
    clock[0] += 20
    assert wait.why_none_comes(2, {}, {0: "x"}) == "", "the other one may send a valid one"
    assert wait.why_none_comes(1, {}, {}) == "", "only the other one is left"
    clock[0] += 20
    assert wait.why_none_comes(1, {}, {1: "y"}) == "", "its first one has just come"
    clock[0] += 20
    assert wait.why_none_comes(1, {}, {1: "y"}) == "", "the next one may take as long as the first"
    clock[0] += 20
    assert "actor 1" in wait.why_none_comes(1, {}, {1: "y"})
    assert wait.why_none_comes(2, {}, {1: "y"}) == ""
    clock[0] += 300
    assert wait.why_none_comes(2, {}, {1: "y"})


def test_the_lines_of_a_long_wait_become_rarer(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: clock[0])
    wait = Wait(2)
    for second in range(300):
        clock[0] = 100.0 + second
        wait.wait.say_due_line()
    printed = [int(line.split("(")[1].split()[0]) for line in wait.said]
    assert printed == [5, 10, 20, 40, 80, 140, 200, 260]
