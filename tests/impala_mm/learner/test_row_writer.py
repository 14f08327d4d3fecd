"""The rates and verdicts of rows where an update takes longer than the time between two rows."""

import math
import types

import pytest

from impala_mm.learner.row_writer import Divergence, RowWriter
from impala_mm.records import metrics
from impala_mm.records.bottleneck import progress_line

FRAMES = 8192  # of an update
RUNNING = "bottleneck: not known yet (an update is running"


class Run:
    """A run on a clock of its own, whose rows are written every 2 s as the monitor does."""

    def __init__(self, monkeypatch, deterministic=False):
        self.now, self.lines, self.rows, self.silent = 100.0, [], [], ""
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(metrics, "time", clock)
        self.learner = types.SimpleNamespace(
            **{"frames": 0.0, "steps": 0, "updates": 0, "updated_at": 0.0},
            **{"meter": metrics.Meter(), "has_received": True, "variables_complete": True},
            **{"offline_updates": 0, "offline_left": 0, "weight_size": 0.0},
            limits=types.SimpleNamespace(frames=1e9, seconds=1e9),
        )
        self.aggregator = metrics.MetricsAggregator({"catch": None})
        self.aggregator.start(0.0, 0)
        self.actors, self._due = 2, self.now + 2
        self.status = types.SimpleNamespace(
            config=types.SimpleNamespace(check_sync_every=0, deterministic_run=deterministic),
            group=types.SimpleNamespace(size=1),
            learner=self.learner,
            server=types.SimpleNamespace(rounds=None, has_received=True),
            aggregator=self.aggregator,
            reports=[],
            filling=lambda: (0, 0),
            actor_counts=lambda: {"actors": self.actors},
            silence=lambda: self.silent,
            say=print,
        )
        self.writer = RowWriter(self.status, types.SimpleNamespace(write=self.rows.append))

    def wait(self, seconds):
        """Let the learner wait for unrolls, which it measures five times a second."""
        for _ in range(round(seconds * 5)):
            self._pass(0.2)
            self.learner.meter.add_times(wait=0.2)

    def update(self, seconds):
        """Let the learner make an update; its time is measured when it ends."""
        self.learner.variables_complete = False
        for _ in range(round(seconds * 5)):
            self._pass(0.2)
        learner = self.learner
        learner.variables_complete, learner.updated_at = True, self.now
        learner.meter.add_times(train=seconds)
        learner.frames, learner.steps = learner.frames + FRAMES, learner.steps + FRAMES // 4
        learner.updates += 1
        learner.meter.add({"loss/total": 1.0}, FRAMES // 4)

    def make(self, updates, wait, seconds):
        """Let the learner wait and make an update, several times."""
        for _ in range(updates):
            self.wait(wait)
            self.update(seconds)

    def write(self):
        """Write a row."""
        self.status.seconds = self.now
        row = self.writer.write()
        self.lines.append(progress_line(row, self.writer._eta))

    def _pass(self, seconds):
        self.now += seconds
        if self.now >= self._due - 1e-9:
            self._due += 2
            self.write()


@pytest.mark.parametrize(("wait", "update"), [(0.6, 2.6), (2.0, 9.0), (0.2, 0.8)])
def test_the_rate_of_long_updates_is_right_in_each_row_and_its_verdict_holds(
    monkeypatch, wait, update
):
    run = Run(monkeypatch)
    run.make(16, wait, update)
    rows = [row for row in run.rows if row["updates"] > 1]  # after that of the first update
    assert len(rows) > 5
    for row in rows:
        assert row["frames_per_second"] == pytest.approx(FRAMES / (wait + update))
        assert row["steps_per_second"] == pytest.approx(FRAMES / 4 / (wait + update))
        assert row["updates_per_second"] == pytest.approx(1 / (wait + update))
    settled = [row["verdict"] for row in rows if row["updates"] > 2]
    assert all(each.startswith("bottleneck: actors (the learner waits ") for each in settled)
    measured = [row["wait_share"] for row in rows if "wait_share" in row]
    assert sum(measured) / len(measured) == pytest.approx(wait / (wait + update), abs=0.1)
    assert not any("0/s" in line.split("|")[1].split() for line in run.lines[-5:])


def test_rows_between_updates_are_no_evidence_of_a_stable_rate(monkeypatch):
    run = Run(monkeypatch)
    for seconds in (1.0, 20.0, 20.0):
        run.wait(1.0)
        run.update(seconds)
    assert len(run.rows) > 15
    assert not any("ETA" in line for line in run.lines)


def test_the_first_update_counts_since_the_start_and_is_said_to_be_compiled(monkeypatch):
    run = Run(monkeypatch)
    run.wait(3.0)
    run.update(7.4)
    run.write()
    assert run.rows[0]["verdict"].startswith("bottleneck: actors (no unrolls arrive)")
    for row in run.rows[1:-1]:
        assert row["verdict"] == f"{RUNNING}; the first one is also compiled)"
        assert row["frames_per_second"] == 0
    assert run.rows[-1]["frames_per_second"] == pytest.approx(FRAMES / 10.4)
    assert run.rows[-1]["verdict"] == "bottleneck: not known yet"
    assert run.writer.write(ended="reached 9 frames")["verdict"] == "ended: reached 9 frames"


def test_a_run_whose_actors_stop_is_at_a_standstill_after_three_updates_time(monkeypatch):
    run = Run(monkeypatch)
    run.make(5, 0.6, 2.4)
    run.wait(8.0)
    assert run.rows[-1]["frames_per_second"] == pytest.approx(FRAMES / 3)
    run.wait(4.0)
    assert run.rows[-1]["frames_per_second"] == run.rows[-1]["updates_per_second"] == 0
    assert run.rows[-1]["verdict"].startswith("bottleneck: actors (no unrolls arrive)")
    run.update(2.4)
    run.write()
    rate = run.rows[-1]["frames_per_second"]
    assert rate == pytest.approx(FRAMES / 14.4), "since the row that last counted some"
    run.actors = 0
    run.write()
    assert run.rows[-1]["verdict"].startswith("bottleneck: actors (none is connected)")
    run.actors, run.silent = 2, "learner 1 does not answer"
    run.write()
    assert run.rows[-1]["verdict"].startswith("bottleneck: learner 1 does not answer")


def test_an_update_that_hangs_is_not_said_to_be_the_first_or_to_lack_unrolls(monkeypatch):
    run = Run(monkeypatch)
    run.make(5, 0.6, 2.4)
    run.wait(2.6)
    run.update(30.0)
    standing = [row["verdict"] for row in run.rows if not row["frames_per_second"]][3:]
    assert len(standing) > 8
    assert set(standing) == {f"{RUNNING}, longer than those before it)"}


def test_a_deterministic_run_takes_turns_between_updates_too(monkeypatch):
    run = Run(monkeypatch, deterministic=True)
    run.make(8, 1.0, 4.0)
    verdicts = [row["verdict"] for row in run.rows if row["updates"] > 2]
    assert len(verdicts) > 8
    assert all("--deterministic_run (the actor plays" in verdict for verdict in verdicts)


def test_a_training_that_diverges_is_named_once_and_again_when_it_is_far_worse():
    watch = Divergence()
    learning = {"loss/total": 4e9, "loss_per_step/total": 7.0, "loss_per_step/entropy": -0.6}
    assert not watch.describe(learning, 0.4)
    assert not watch.describe({"verdict": "actors"}, 3.0), "a row without an update"
    (said,) = watch.describe(learning | {"loss_per_step/baseline": 3e19}, 0.4)
    assert "loss_per_step/baseline = 3.0e+19" in said
    (said,) = watch.describe(learning | {"loss_per_step/baseline": 1e20}, 6e10)
    assert "weights = 6.0e+10" in said
    assert not watch.describe(learning, 6e12)
    assert len(watch.describe(learning, 6e17)) == 1
    assert not watch.describe({"loss/total": -2e11}, 0.4)
    (said,) = watch.describe({"loss/total": -2e13}, 0.4)
    assert "loss/total" in said


@pytest.mark.parametrize("key", ["entropy", "loss_per_step/entropy"])
def test_a_policy_without_entropy_for_long_is_named_once(key):
    watch = Divergence()
    for entropy in (0.7, *[0.0] * 9, 1e-3, math.nan, *[0.0] * 9):
        assert not watch.describe({key: entropy}, 1.0)
    (said,) = watch.describe({key: -1e-32}, 1.0)
    assert "entropy has been 0" in said
    for entropy in (*[0.0] * 9, 0.7, *[0.0] * 20):
        assert not watch.describe({key: entropy}, 1.0)
