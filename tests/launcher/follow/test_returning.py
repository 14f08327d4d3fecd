"""Lost hosts of learners that answer again: when they are used again, how often, and on trial."""

import pytest

from launcher.follow.learner_recovery import RETURNS, TRIAL_SECONDS, ReturningHosts


def test_a_host_returns_once_it_has_answered_without_a_break():
    hosts = ReturningHosts(120)
    assert hosts.update({"a", "b"}, 0) == {"a", "b"}
    assert hosts.update({"a"}, 60) == set(), "it is reported once"
    assert hosts.update({"a", "b"}, 61) == {"b"}
    assert hosts.due(119) == set()
    assert hosts.due(120) == {"a"}
    assert hosts.due(181) == {"a", "b"}


def test_each_return_takes_twice_as_long_and_there_are_few_of_them():
    hosts, now = ReturningHosts(120), 0.0
    for wait in (120, 240, 480, 960, 1920):
        assert hosts.update({"a"}, now) == {"a"}
        assert hosts.wait("a") == wait
        assert hosts.due(now + wait - 1) == set()
        now += wait
        assert hosts.due(now) == {"a"}
        hosts.begin_trial({"a"}, now)
    assert RETURNS == 5
    assert hosts.update({"a", "b"}, now) == {"b"}
    assert hosts.due(now + 1e9) == {"b"}, "others return as if it were not there"


def test_no_host_returns_with_0_seconds():
    hosts = ReturningHosts(0)
    assert hosts.update({"a"}, 0) == set()
    assert hosts.due(1e9) == set()


def test_a_crash_on_trial_is_blamed_on_the_hosts_that_returned():
    hosts = ReturningHosts(1)
    hosts.begin_trial({"a"}, 0)
    assert hosts.failed(False, lambda: True, 100) == set(), "it may be compiling"
    assert hosts.has_trial
    assert hosts.failed(True, lambda: False, 101) == {"a"}
    assert not hosts.has_trial
    assert hosts.failed(True, lambda: True, 102) == set(), "others crash, too"


@pytest.mark.parametrize("stuck", [True, False])
def test_learners_without_progress_at_the_end_of_the_trial_go_on_without_the_host(stuck):
    hosts = ReturningHosts(1)
    hosts.begin_trial({"a"}, 0)
    hosts.begin_trial({"b"}, 50)
    assert hosts.failed(False, lambda: stuck, TRIAL_SECONDS + 1) == ({"a", "b"} if stuck else set())
    assert hosts.has_trial is not stuck, "b has been on trial for a shorter time"
