"""Tests of sandbox/benchmarks/components.py: few batches are measured; the time left is printed."""

import sys

import pytest
from processes import ROOT

sys.path.append(
    str(ROOT / "sandbox" / "benchmarks")
)  # the scripts import each other by short names

import components

from impala_mm.algorithms.policy_gradient import settings as ppo_settings
from impala_mm.algorithms.q_policy import settings as sac_settings
from impala_mm.config.settings import Config


@pytest.mark.parametrize(
    ("costs", "tried"),
    [
        ([100, 90, 95, 10], 3),  # 32 is more expensive than 16
        ([100, 90, 88.3, 10], 3),  # cheaper by only 1.9%
        ([100, 90, 88.1, 87, 10], 4),
        ([100, 90, 80, 70, 60, 50], 6),
        ([100, 101, 80, 82], 4),
    ],
)
def test_larger_batches_are_tried_while_they_pay(costs, tried):
    asked = []

    def at(batch):
        asked.append(batch)
        return costs[len(asked) - 1]

    found = components.measure_growing_batches(list(components.BATCHES), 3, at)
    assert asked == list(components.BATCHES[:tried])
    assert found == dict(zip(asked, costs, strict=False))
    again = components.best_and_neighbours(found)
    assert set(again) <= set(found)
    assert min(map(found.get, again)) == min(found.values()), "the best is measured again"


FAKES = []


class FakeProcess:
    """A measuring process whose environments cost least at 16 and whose updates get cheaper."""

    def __init__(self, config, threads, gpus=True):
        self.threads, self.asked = threads, []
        FAKES.append(self)

    def send(self, **message):
        self.asked.append(message)

    def receive(self):
        message = self.asked[-1]
        if "measure_seconds" in message:
            dear = {"environment": 4 + (message["batch"] != 16), "training": 900 / message["batch"]}
            return {"cpu": dear.get(message["task"], 1.0) / self.threads, "steps": 1e6}
        new = self.asked.count(message) == 1  # a prepared task reports nothing
        return {"precision": "float16"} if message.get("prepare") == "training" and new else {}

    def kill(self):
        self.asked.append({})


@pytest.fixture
def bench(monkeypatch):
    FAKES.clear()
    monkeypatch.setattr(components, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(components.os, "sched_getaffinity", lambda _: {0, 1})
    config = Config(level_name="catch", batch_size=12, unroll_length=20)
    return components.ComponentBenchmark(config, 0.5, lambda said: None)


def prepared(process, part):
    return [what["batch"] for what in process.asked if what.get("prepare") == part]


def test_few_emulators_are_started_and_none_when_measured_again(bench):
    first = bench.measure()
    assert [process.threads for process in FAKES] == [1, 1, 2]
    for process in FAKES:
        assert prepared(process, "environment") == [8, 16, 32]
        assert prepared(process, "inference") == [8, 16, 32, 64, 128, 256]
        # Up to 2,560 steps, and its own.
        assert prepared(process, "training") == [8, 16, 32, 64, 128, 12]
    assert (first.environment, first.inference) == pytest.approx((2e-6, 0.5e-6))
    assert first.training == pytest.approx(900 / 128 / 2 * 1e-6)
    assert first.settings["precision"] == "float16", "the precision that auto became"
    before = [{part: set(prepared(p, part)) for part in components.PARTS} for p in FAKES]
    again = bench.measure()
    assert (again.environment, again.training) == (first.environment, first.training)
    assert {m.batch for m in again.measured if m.part == "training"} == {64, 128}
    assert again.settings == first.settings
    after = [{part: set(prepared(p, part)) for part in components.PARTS} for p in FAKES]
    assert after == before, "only prepared tasks are measured"
    assert "training from 256/1t and 256/2t on" in components.format_table(first)


def test_an_algorithm_with_rounds_or_its_own_replay_is_measured_with_the_runs_batch_only(bench):
    bench._config = ppo_settings.PPOSettings(level_name="catch", batch_size=12)
    found = bench.measure()
    assert {m.batch for m in found.measured if m.part == "training"} == {12}
    assert bench.measure().training == found.training == pytest.approx(900 / 12 / 2 * 1e-6)
    own = sac_settings.SACSettings(level_name="Pendulum-v1")
    assert components.candidate_batches("training", own) == []
    assert components.candidate_batches("environment", own)
