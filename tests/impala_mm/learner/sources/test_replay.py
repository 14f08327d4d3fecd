"""Replay as the flags ask for it, with TensorFlow's queue and a learner's batches."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from unrolls import CODEC, LENGTH, SPEC, unroll

from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.distributed.group import SingleLearner
from impala_mm.learner.lockstep import UNKNOWN, Lockstep
from impala_mm.learner.sources import replay
from impala_mm.learner.sources.batch_source import UnrollQueue
from impala_mm.learner.sources.own import OwnSource
from impala_mm.replay.mixer import Columns
from impala_mm.runtime.starter import ProcessRank


class Plain(Algorithm):
    unroll = SPEC


RUN = replay.RunOnHost(Path("/run"), is_new=True)


def _config(text="queue:0.5,prioritised:0.5:100:exponent=1", **flags):
    return Config(batch_size=4, unroll_length=LENGTH, replay=text, **flags)


def _source(config, algorithm=None):
    queue = tf.queue.FIFOQueue(100, [tf.string, tf.int64], [[], []])
    position = replay.Position(lambda: 0, lambda: 0.0)

    def make(fresh):
        of = algorithm or Plain(), fresh, position, RUN, ProcessRank(), print
        return replay.make_source(config, *of)

    return queue, OwnSource(make, UnrollQueue(queue), SPEC)


def _put(queue, *numbers):
    queue.enqueue_many([[unroll(n) for n in numbers], list(numbers)])


def test_batches_are_tensors_with_what_the_actors_sent():
    queue, source = _source(_config())
    assert source.noun == "replay"
    _put(queue, *range(14))
    for _ in range(6):
        batch = source.next(20)
        assert tf.is_tensor(batch.weight)
        assert batch.fresh.numpy().tolist() == [True, True, False, False]
        assert batch.unrolls.reward.shape == (LENGTH + 1, 4)
        np.testing.assert_array_equal(batch.unrolls.reward[2], batch.version)
        source.feedback(batch.key, tf.cast(batch.key, tf.float32))
    assert batch.weight.numpy()[2:].min() < 1, "priorities differ by now"
    queue.close()


def test_stored_bytes_that_are_no_unroll_are_refused_by_the_files_to_delete():
    decode = replay._make_decode(CODEC)
    columns = Columns([b"nothing"], *(np.zeros(1, kind) for kind in (int, int, np.float32, bool)))
    with pytest.raises(UserMistake, match=r"of 7 bytes .*own/ of the run.*--replay_spill"):
        decode(columns)


def test_steps_that_are_only_stored_count_as_played():
    queue, source = _source(_config("uniform:1:100", replay_ratio=2.0, replay_min=3))
    _put(queue, *range(3))
    lockstep = Lockstep(source, SingleLearner(), 1, lambda: UNKNOWN)
    assert lockstep.next(20).steps == 3 * LENGTH
    queue.close()
    assert source.metrics()["replay_unrolls/uniform"] == 3


def test_the_limit_of_a_spill_does_not_shrink_with_each_start(tmp_path, monkeypatch):
    """What an earlier start wrote is no longer free, and may be replaced."""
    config = _config(replay_spill=str(tmp_path / "spill"))
    free = 1000
    monkeypatch.setattr(replay.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    assert replay.memory(config, ProcessRank()) == 500
    folder = tmp_path / "spill" / "learner-0"
    folder.mkdir(parents=True)
    (folder / "0000000000.unrolls").write_bytes(b"?" * 300)
    (folder / "spill.json").write_bytes(b"{}")
    free -= 300
    assert replay.memory(config, ProcessRank()) == 500
    assert replay.memory(config, ProcessRank(2, 0, 2)) == 250
    folder.rename(folder.with_name("learner-1"))
    assert replay.memory(config, ProcessRank(2, 0, 2)) == 250
    assert replay.memory(config, ProcessRank()) == 350, "nobody deletes what lies there"
    (line,) = replay._unused_spills(config, ProcessRank())
    assert str(folder.with_name("learner-1")) in line
    assert replay._unused_spills(config, ProcessRank(2)) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"replay_max_gb": 0}, "--replay_max_gb=0: prioritised has room for 0 unrolls"),
        ({"replay_max_gb": 3e-7}, "has room for 3 unrolls"),
        ({"replay_spill": "/"}, "--replay_max_gb=auto (half of what / has free): prioritised"),
    ],
)
def test_memory_for_less_than_a_batch_is_refused(flags, said, monkeypatch, capsys):
    monkeypatch.setattr(replay.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    config = _config(**flags)
    with pytest.raises(SystemExit):
        replay.refuse_little_memory(config, CODEC, replay.memory(config, ProcessRank()))
    assert said in capsys.readouterr().err


class Comparing(Plain):
    """An algorithm whose features are rewards, recorded, and 0, computed now."""

    def compare_features(self, entries, start):
        recorded = tf.stack([entries.reward[1:]] * 2, -1)  # [T, B, F]
        return recorded, tf.zeros_like(recorded)


def test_elite_draws_by_the_features_that_the_algorithm_compares():
    config = _config("queue:0.5,elite:0.5:100:strategy=1:lambda=1000", replay_min=20)
    queue, source = _source(config, Comparing())
    _put(queue, *range(20))
    batch = source.next(20)
    assert sorted(batch.version.numpy()[2:].tolist()) == [0, 1]
    measured = source.metrics()
    assert measured["replay_distance/elite"] < measured["replay_distance_of_candidates/elite"]
    queue.close()


def test_new_unrolls_have_the_priorities_that_the_algorithm_gives_them():
    class Judging(Plain):
        def first_priorities(self, entries, start):
            return entries.reward[1]

    queue, source = _source(_config(), Judging())
    _put(queue, 0, 1, 5, 3)
    assert source.next(20) is not None
    (replay,) = source._source._mixer.replays
    slots = replay.store.slots_of(np.arange(4))
    np.testing.assert_allclose(replay.state(slots)["priorities"], [1e-6, 1, 5, 3])
    queue.close()


def test_a_source_is_saved_and_restored_with_its_unrolls(tmp_path):
    queue, source = _source(_config("uniform:1:100"))
    _put(queue, *range(4))
    assert source.next(20) is not None
    source.save(tmp_path)
    queue.close()
    queue, again = _source(_config("uniform:1:100"))
    again.restore(tmp_path)
    _put(queue, *range(4, 8))
    batch = again.next(20)
    assert set(batch.version.numpy().tolist()) <= set(range(8))
    assert not batch.fresh.numpy().any()
    assert again.take_stored_steps() == 4 * LENGTH
    queue.close()
