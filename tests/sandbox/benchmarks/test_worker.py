"""Tests of sandbox/benchmarks/worker.py: on which batches it measures updates."""

import sys

import numpy as np
import pytest
from processes import ROOT

from impala_mm.config.settings import Config
from impala_mm.runtime import lifecycle

sys.path.append(str(ROOT / "sandbox" / "benchmarks"))  # the scripts import each other so


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(lifecycle, "load_tensorflow", lambda *threads: None)  # it is loaded
    import worker  # noqa: PLC0415

    return worker


def test_with_replay_updates_are_measured_on_new_and_old_unrolls(worker):
    config = Config.of_algorithm("impala")(
        level_name="catch",
        batch_size=4,
        num_envs=4,
        replay="queue:0.5,prioritised:0.5:100",
        replay_min=8,
    )
    _, source = worker.WorkerTasks(config, 1)._training_inputs(4)
    batch = worker._next_batch(source)
    assert np.asarray(batch.fresh).tolist() == [True, True, False, False]
    first = int(np.asarray(batch.key)[:2].max()) + 1
    source.feedback(np.arange(first), np.full(first, 1e-12))  # none of these is worth a draw now
    for _ in range(3):  # one batch is prepared ahead
        later = worker._next_batch(source)
    new, old = np.split(np.asarray(later.key), 2)
    assert first <= old.min() <= old.max() <= new.max()
    assert np.asarray(later.fresh).tolist() == [True, True, False, False]
    _, source = worker.WorkerTasks(config, 1)._training_inputs(6)
    batch = worker._next_batch(source)
    assert np.asarray(batch.fresh).tolist() == [True] * 3 + [False] * 3, "not the run's batch size"
