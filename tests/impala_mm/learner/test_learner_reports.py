"""Reports between learners: an update that does not end, and learners that do not answer."""

import threading
import time
from types import SimpleNamespace

import pytest
from processes import free_port
from supervising import until

from impala_mm.learner import learner_reports
from impala_mm.learner.learner_reports import (
    EndlessUpdate,
    ReportExchange,
    SilentLearners,
    unfinished_update,
)
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.server import Server


@pytest.mark.parametrize(
    ("in_update", "message"),
    [
        ([0, 0], ""),
        ([7], ": learner 0 did not finish update 7"),
        ([0, 7], ": learner 1 did not finish update 7, and may wait for a call of `exchange`"),
        ([7, 0, 8], ": learners 0 and 2 did not finish update 7, and may wait for a call of"),
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


@pytest.mark.parametrize(("longest", "timeout"), [(0.0, 1800), (20.0, 300), (60.0, 600)])
def test_an_update_that_lasts_much_longer_than_any_before_ends_the_run(watching, longest, timeout):
    assert watching([0, 7], longest, timeout) == ""
    assert watching([0, 7], longest, 2).startswith(f"no update for {timeout} s: learner 1")


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


@pytest.fixture
def addresses():
    """Return the addresses of three learners, of which the second does not exist."""
    found = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    servers = [
        Server(each, HeldAddress(each), "token", {"run_id": "r"}, 1, lambda _: None)
        for each in (found[0], found[2])
    ]
    yield found
    for thread in threading.enumerate():
        if thread.name == "silence":
            thread.join()  # a call to a server of the same process that closes ends the process
    for server in servers:
        server.close()


def test_only_learners_that_do_not_answer_are_named_and_only_while_reports_are_late(addresses):
    silent = SilentLearners(addresses, 0, "token")
    now = time.monotonic()
    assert silent.describe(now - 5) == silent.describe(float("inf")) == ""
    assert silent.describe(now - 34) == "", "it does not wait for the calls"
    said = until(lambda: silent.describe(now - 34))
    assert said.startswith(f"learner 1 ({addresses[1]} has not answered for 3")
    assert silent.describe(time.monotonic()) == ""
    assert silent.describe(now - 34) == "", "a later silence is not that of the last calls"


def test_a_learner_that_refuses_the_caller_has_answered(addresses):
    silent = SilentLearners([*addresses, addresses[1]], 0, "another token")
    said = until(lambda: silent.describe(time.monotonic() - 60))
    assert said.startswith(f"learners 1 and 3 ({addresses[1]} and {addresses[1]} have not answered")
