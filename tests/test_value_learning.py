"""DQN, R2D2 and SAC in real runs: they learn, resume, are tested and exported, on two learners."""

import re

import numpy as np
import pytest
import tensorflow as tf
from processes import EXPERIMENT, free_port, needs_horovod, run
from rows import read_rows

pytestmark = pytest.mark.slow
RUNS = {
    "dqn": ("--level_name=CartPole-v1", "--mlp_sizes=32"),
    "r2d2": ("--level_name=memory", "--unroll_length=10", "--burn_in=4"),
    "sac": ("--level_name=Pendulum-v1", "--mlp_sizes=32", "--random_steps=200"),
}


def _train(logdir, algorithm, *flags, limit=240):
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    given = (f"--algorithm={algorithm}", *RUNS[algorithm], f"--logdir={logdir}", address)
    code, printed = run(*EXPERIMENT, "--num_actors=1", *given, *flags, limit=limit)
    assert code == 0, printed
    return printed


@pytest.mark.parametrize("algorithm", RUNS)
def test_a_run_is_resumed_tested_and_exported(tmp_path, algorithm):
    logdir, save = tmp_path / "run", "--replay_save"
    _train(logdir, algorithm, save, "--total_environment_frames=3000")
    before = read_rows(logdir)[-1]
    assert np.isfinite(before["loss/total"])
    assert before["replay_share"] > 0.5
    printed = _train(logdir, algorithm, save, "--total_environment_frames=6000")
    assert re.search(r"restored its source \(", printed), printed
    after = read_rows(logdir)[-1]
    assert after["updates"] > before["updates"]
    held = next(key for key in after if key.startswith("replay_unrolls/"))
    assert after[held] > before[held], "the replay went on where it was"
    code, printed = run(*EXPERIMENT, f"--logdir={logdir}", "--mode=test", "--test_num_episodes=3")
    assert code == 0, printed
    code, printed = run(
        *EXPERIMENT, f"--logdir={logdir}", "--mode=export", f"--export_dir={tmp_path / 'export'}"
    )
    assert code == 0, printed
    assert ("value" if algorithm == "sac" else "values") in tf.saved_model.load(
        str(tmp_path / "export")
    ).signatures["serving_default"].structured_outputs


@needs_horovod
@pytest.mark.parametrize("algorithm", RUNS)
@pytest.mark.parametrize("inference", ["actor", "learner"])
def test_two_learners_hold_equal_variables(tmp_path, algorithm, inference):
    _train(
        tmp_path,
        algorithm,
        *("--num_learners=2", "--num_actors=2", f"--inference={inference}"),
        *("--check_sync_every=5", "--total_environment_frames=6000"),
    )
    row = read_rows(tmp_path)[-1]
    assert row["sync_checks"] > 2
    assert row["sync_repairs"] == 0


def test_dqn_holds_475_for_100_games_of_cartpole(tmp_path):
    preset = ("--preset=classic-dqn", "--mlp_sizes=256,256", "--stop_at_return=475")
    printed = _train(tmp_path, "dqn", *preset, limit=900)
    assert "the mean return reached 475" in printed


def test_sac_swings_the_pendulum_up_within_10_000_steps(tmp_path):
    preset = ("--preset=pendulum-sac", "--mlp_sizes=256,256", "--random_steps=1000")
    _train(tmp_path, "sac", *preset, "--total_environment_frames=10000", limit=900)
    code, printed = run(
        *EXPERIMENT, f"--logdir={tmp_path}", "--mode=test", "--test_num_episodes=20", limit=120
    )
    assert code == 0, printed
    assert float(re.search(r"return +(-?[\d.]+)", printed)[1]) > -200


def test_sac_is_refused_for_choices_in_a_sentence(tmp_path):
    flags = ("--algorithm=sac", "--level_name=CartPole-v1", f"--logdir={tmp_path / 'run'}")
    code, printed = run(*EXPERIMENT, *flags, f"--learner_hosts=127.0.0.1:{free_port()}")
    assert code == 2, printed
    assert "error: --algorithm=sac: SAC chooses numbers (Box), and CartPole-v1 takes" in printed
    assert "Traceback" not in printed
