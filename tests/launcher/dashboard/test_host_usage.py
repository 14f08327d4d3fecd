"""The use of hosts over time: sums over processes, and a history whose length is bounded."""

import itertools

import pytest

from launcher.dashboard import host_usage
from launcher.dashboard.host_usage import HostUsage


def _process(host, job="actor", state="running", **more):
    known = {"cpu": 50, "memory": 100, "frames_per_second": 10.0}
    return {"host": host, "job": job, "state": state} | known | more


def _status(*processes, gpus=()):
    return {"processes": list(processes), "gpus": list(gpus)}


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(host_usage.time, "time", lambda: now[0])
    return now


def test_processes_of_a_host_are_added_up(clock):
    usage = HostUsage()
    gpu = {"index": "0", "used": "37", "memory": "[N/A]"}
    learners = _process("a", "learner", frames_per_second=20.0)
    away = _process("b", cpu=None, memory=None, frames_per_second=None, state="away")
    usage.add(_status(learners, _process("a"), away, gpus=[gpu]))
    found = usage.describe()
    assert found["hosts"] == {
        "a": {"cores": [1.0], "memory": [200], "frames_per_second": [10.0]},
        "b": {"cores": [0], "memory": [0], "frames_per_second": [0]},
    }
    assert found["gpus"] == {"GPU 0": {"busy": [37.0], "memory": [None]}}
    clock[0] = 2.0
    usage.add(_status(_process("c")))
    assert usage.describe()["times"] == [0.0, 2.0]
    assert usage.describe()["hosts"]["c"]["cores"] == [None, 0.5]
    assert usage.last()["hosts"].keys() == {"c"}


def test_a_day_is_as_long_as_an_hour(clock):
    usage = HostUsage()
    for second in range(0, 86_400, 2):
        clock[0] = float(second)
        usage.add(_status(_process("a")))
    times = usage.describe()["times"]
    assert 200 < len(times) <= 600
    assert times[0] == 0
    assert max(b - a for a, b in itertools.pairwise(times)) < 600
    assert times[-1] > 86_400 - 600


def test_hosts_beyond_the_first_ones_are_added_up_and_the_history_stays_small(clock):
    usage, hosts = HostUsage(), 1000
    for second in range(700):
        clock[0] = float(2 * second)
        usage.add(_status(*(_process(f"h{(i + second) % hosts}") for i in range(50))))
    found = usage.describe()["hosts"]
    assert len(found) == 33
    assert list(found)[:2] == ["h0", "h1"]
    for field, one in (("cores", 0.5), ("memory", 100), ("frames_per_second", 10)):
        sums = [sum(each[field][i] or 0 for each in found.values()) for i in (0, -1)]
        assert sums == [50 * one] * 2
    assert found["other hosts"]["cores"][0] == 9.0
    assert usage.last()["hosts"] == {
        "other hosts": {"cores": [25.0], "memory": [5000.0], "frames_per_second": [500.0]}
    }


def test_a_copy_does_not_change(clock):
    usage = HostUsage()
    usage.add(_status(_process("a")))
    before, copied = usage.describe(), usage.copy()
    clock[0] = 2.0
    usage.add(_status(_process("a")))
    assert copied.describe() == before != usage.describe()
