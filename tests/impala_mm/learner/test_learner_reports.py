"""Reports between learners: what they tell about an update that does not end."""

import time
from types import SimpleNamespace

import pytest

from impala_mm.learner import learner_reports
from impala_mm.learner.learner_reports import EndlessUpdate, ReportExchange, unfinished_update


@pytest.mark.parametrize(
    ("in_update", "message"),
    [
        ([0], ""),
        ([0, 0], ""),
        ([7], ": learner 0 did not finish update 7"),
        (
            [0, 7],
            ": learner 1 did not finish update 7, and may wait for a call of `exchange` that "
            "another learner does not make; a condition around it must be equal on all learners",
        ),
        ([7, 0, 7], ": learners 0 and 2 did not finish update 7, and may wait for a call of"),
    ],
)
def test_the_learners_whose_update_does_not_end_are_named(in_update, message):
    said = unfinished_update([SimpleNamespace(in_update=number) for number in in_update])
    assert said.startswith(message)
    assert bool(said) == bool(message)


def test_learners_that_exchange_no_reports_are_told_of_the_network_and_not_of_their_calls():
    reports = [SimpleNamespace(in_update=7), SimpleNamespace(in_update=7)]
    said = unfinished_update(reports, silent=45.0)
    assert "45 s" in said
    assert "network" in said
    assert "`exchange`" not in said
    assert "network" not in unfinished_update(reports, silent=5.0)
    assert unfinished_update(reports[:1], silent=45.0) == ": learner 0 did not finish update 7"


@pytest.fixture
def watching(monkeypatch):
    """Return a function that passes reports every second: (updates, longest one, seconds)."""
    now = [0.0]
    monkeypatch.setattr(learner_reports.time, "monotonic", lambda: now[0])
    watch = EndlessUpdate()

    def look(in_update, longest, seconds):
        reports = [SimpleNamespace(in_update=k, longest_update=longest) for k in in_update]
        for _ in range(seconds):
            now[0] += 1
            if found := watch.why_endless(reports):
                break
        return found

    look.sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)
    return look


@pytest.mark.parametrize(
    ("longest", "timeout"), [(0.0, 1800), (0.5, 300), (20.0, 300), (60.0, 600)]
)
@pytest.mark.parametrize("in_update", [[7, 8], [7, 7], [0, 7]])
def test_an_update_that_lasts_much_longer_than_any_before_ends_the_run(
    watching, in_update, longest, timeout
):
    assert watching(in_update, longest, timeout) == ""
    said = watching(in_update, longest, 2)
    assert said.startswith(f"no update for {timeout} s: learner")
    assert said.endswith("a condition around it must be equal on all learners")


def test_no_run_ends_while_updates_follow_or_none_is_made_or_a_process_was_stopped(watching):
    for update in range(50):
        assert watching([update, update + 1], 0.1, 250) == ""
    assert watching([0, 0], 0.1, 5000) == "", "learners wait for unrolls"
    assert watching([3], 0.1, 5000) == "", "a single learner waits for no other"
    assert watching([4, 4], 0.1, 200) == ""
    watching.sleep(5000)
    assert watching([4, 4], 0.1, 90) == "", "the time in which they were stopped does not count"
    assert watching([4, 4], 0.1, 30)


@pytest.mark.parametrize("patient", [True, False])
def test_a_learner_that_ended_waits_for_one_that_still_saves_as_long_as_that_reports(patient):
    """The other one's training ends with the fourth report, after 4 s."""
    reports = [[SimpleNamespace(done=done)] for done in (False, False, False, True)]
    group = SimpleNamespace(gather=lambda report, name: (time.sleep(1.0), reports.pop(0))[1])
    exchange = ReportExchange(group, lambda: None, lambda reports: None)
    exchange.start()
    assert exchange.finish(0.5, lambda: patient) == patient
    exchange.join()
    assert exchange.finish(0.1, lambda: False), "it has ended since"
