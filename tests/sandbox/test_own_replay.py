"""The example of a kind of replay from outside: it trains, is saved and resumed with its state."""

import importlib
import math
import sys

import numpy as np
import pytest
from processes import ROOT, run
from unrolls import CODEC, unroll

from impala_mm.config import replay_mix
from impala_mm.replay import shard
from impala_mm.replay.samplers import SamplerSetup, make_replay
from impala_mm.replay.store import StoredUnroll, pack


@pytest.fixture(autouse=True)
def ranked():
    """Register the example's kind."""
    importlib.import_module("sandbox.own_replay")


def _make(power):
    (part,) = replay_mix.parse(f"ranked:1:4:power={power}").replays
    return make_replay(SamplerSetup(part, math.inf, np.random.default_rng(0)))


def test_it_draws_by_ranks_and_weights_undo_that():
    replay = _make(1)
    for key in range(5):  # the first one makes room for the last
        replay.insert(StoredUnroll(key, 0, pack(unroll(key))))
    replay.write_priorities(np.arange(5), np.array([9.0, 1.0, 2.0, 8.0, 4.0]))
    counts, weighted = np.zeros(5), np.zeros(5)
    for _ in range(500):
        draw = replay.draw(8, 0.0)
        keys = np.array([replay.store[slot].key for slot in draw.slots])
        np.add.at(counts, keys, 1)
        np.add.at(weighted, keys, draw.weights)
    by_rank = np.array([0, 1 / 4, 1 / 3, 1, 1 / 2])
    np.testing.assert_allclose(counts / counts.sum(), by_rank / by_rank.sum(), atol=0.02)
    np.testing.assert_allclose(weighted[[3, 4]] / 1000, [1, 1], rtol=0.1)


def test_its_state_is_saved_with_its_unrolls_and_its_options_are_checked(tmp_path):
    before, after = _make(0.5), _make(0.5)
    for key in range(6):
        before.insert(StoredUnroll(key, 0, pack(unroll(key))))
    before.write_priorities(np.array([3, 5]), np.array([2.0, 3.0]))
    mix = shard.MixState([], np.zeros(5, np.int64), np.zeros(3))
    shard.save(tmp_path, CODEC, [before], mix)
    shard.restore([shard.Share(tmp_path)], CODEC, [after])
    drawn = [replay.draw(50, 0.0).slots.tolist() for replay in (before, after)]
    assert drawn[0] == drawn[1]
    errors = after.state(np.arange(4))["errors"]
    assert sorted(errors.tolist()) == [2, 3, np.inf, np.inf]
    for wrong in ("power=11", "decay=1"):
        with pytest.raises(ValueError, match=wrong.partition("=")[0]):
            replay_mix.parse(f"ranked:1:4:{wrong}")


@pytest.mark.slow
def test_a_run_trains_with_it_and_a_resumed_run_has_its_errors(tmp_path):
    flags = ["--import=sandbox.own_replay", "--replay=queue:0.5,ranked:0.5:50:power=0.5"]
    flags += ["--replay_save", "--batch_size=4", "--unroll_length=5", "--check_env_secs=0"]
    flags += [f"--logdir={tmp_path}", "--num_actors=1", "--num_envs=4"]
    for frames in (600, 1200):
        given = [*flags, f"--total_environment_frames={frames}"]
        code, printed = run(sys.executable, ROOT / "experiment.py", *given)
        assert code == 0, printed
        with np.load(max(tmp_path.glob("own/*/*/source/index.npz"))) as index:
            errors = index["ranked/errors"]
            assert len(errors) == len(index["ranked/held"]) > 4
            assert np.isfinite(errors).any()
    assert "replay: training begins with this many unrolls: ranked: " in printed
    assert '"replay_rank/ranked"' in (tmp_path / "metrics.jsonl").read_text()
