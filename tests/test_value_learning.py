"""DQN, R2D2 and SAC in real runs: they learn, resume, are tested and exported, on two learners."""

import re

import numpy as np
import pytest
import tensorflow as tf
from processes import EXPERIMENT, free_port, needs_horovod, run
from rows import read_rows

pytestmark = pytest.mark.slow
CARTPOLE = ("--algorithm=dqn", "--level_name=CartPole-v1", "--mlp_sizes=32")
C51 = ("--value_distribution=categorical", "--v_min=0", "--v_max=100")
IQN = (
    "--value_distribution=quantiles",
    *(f"--num_{which}quantiles=8" for which in ("", "target_", "policy_")),
)
PICTURES = ("--algorithm=dqn", "--level_name=tests.helpers.games:PictureCatch")
RUNS = {
    "dqn": CARTPOLE,
    "c51": (*CARTPOLE, *C51, "--duelling", "--noisy", "--n_steps=3"),
    "iqn": (*CARTPOLE, *IQN, "--duelling", "--noisy"),
    "drq": (*PICTURES, "--random_shift=2", "--value_shifts=2", "--target_shifts=2"),
    "r2d2": ("--algorithm=r2d2", "--level_name=memory", "--unroll_length=10", "--burn_in=4"),
    "sac": ("--algorithm=sac", "--level_name=Pendulum-v1", "--mlp_sizes=32", "--random_steps=200"),
}


def _train(logdir, name, *flags, limit=240):
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    given = (*RUNS[name], f"--logdir={logdir}", address)
    code, printed = run(*EXPERIMENT, "--num_actors=1", *given, *flags, limit=limit)
    assert code == 0, printed
    return printed


def _last_update(logdir):
    """Return the last row that measured an update: there may be none before a run's last row."""
    return [row for row in read_rows(logdir) if "loss/total" in row][-1]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_resumed_tested_and_exported(tmp_path, name):
    logdir, save = tmp_path / "run", "--replay_save"
    _train(logdir, name, save, "--total_environment_frames=3000")
    before = _last_update(logdir)
    assert np.isfinite(before["loss/total"])
    assert before["replay_share"] > 0.5
    printed = _train(logdir, name, save, "--total_environment_frames=6000")
    assert re.search(r"restored its replay \(", printed), printed
    after = _last_update(logdir)
    assert after["updates"] > before["updates"]
    held = next(key for key in after if key.startswith("replay_unrolls/"))
    assert after[held] > before[held], "the replay went on where it was"
    code, printed = run(*EXPERIMENT, f"--logdir={logdir}", "--mode=test", "--test_num_episodes=3")
    assert code == 0, printed
    code, printed = run(
        *EXPERIMENT, f"--logdir={logdir}", "--mode=export", f"--export_dir={tmp_path / 'export'}"
    )
    assert code == 0, printed
    assert ("value" if name == "sac" else "values") in tf.saved_model.load(
        str(tmp_path / "export")
    ).signatures["serving_default"].structured_outputs


@needs_horovod
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("inference", ["actor", "learner"])
def test_two_learners_hold_equal_variables(tmp_path, name, inference):
    _train(
        tmp_path,
        name,
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


@pytest.mark.parametrize(
    ("parts", "goal"), [(C51, 300), (IQN, 150), (("--noisy",), 150)], ids=["c51", "iqn", "noisy"]
)
def test_each_part_of_rainbow_learns_cartpole(tmp_path, parts, goal):
    """A random policy has a mean return of 22, and noise lowers the one that is measured."""
    preset = ("--preset=classic-dqn", "--mlp_sizes=256,256", f"--stop_at_return={goal}")
    printed = _train(tmp_path, "dqn", *preset, *parts, limit=900)
    assert f"the mean return reached {goal}" in printed


def test_drq_learns_from_pictures(tmp_path):
    """A random policy has a mean return of -0.6."""
    flags = (
        *("--value_shifts=1", "--target_shifts=1", "--n_steps=3", "--duelling", "--batch_size=16"),
        *("--epsilon_frames=4000", "--epsilon_end=0.02", "--learning_rate=0.001"),
        *("--target_share=0.02", "--num_envs=4", "--total_environment_frames=12000"),
    )
    _train(tmp_path, "drq", *flags, limit=900)
    code, printed = run(
        *EXPERIMENT, f"--logdir={tmp_path}", "--mode=test", "--test_num_episodes=50", limit=120
    )
    assert code == 0, printed
    assert float(re.search(r"return +(-?[\d.]+)", printed)[1]) > 0.8


def test_sac_swings_the_pendulum_up_within_10_000_steps(tmp_path):
    preset = ("--preset=pendulum-sac", "--mlp_sizes=256,256", "--random_steps=1000")
    _train(tmp_path, "sac", *preset, "--total_environment_frames=10000", limit=900)
    assert _tested(tmp_path) > -200


def _tested(logdir):
    """Return the mean return of 50 games of a run's policy."""
    code, printed = run(
        *EXPERIMENT, f"--logdir={logdir}", "--mode=test", "--test_num_episodes=50", limit=120
    )
    assert code == 0, printed
    return float(re.search(r"return +(-?[\d.]+)", printed)[1])


def test_r2d2_remembers_the_sign_of_the_t_maze(tmp_path):
    flags = ("--preset=tmaze-r2d2", "--level_name=tmaze", "--unroll_length=24", "--burn_in=8")
    _train(tmp_path, "r2d2", *flags, limit=900)
    assert _tested(tmp_path) > 0.8


@pytest.mark.parametrize("ratio", [4, 0])
def test_fifteen_bits_are_flipped_to_a_goal_with_hindsight_and_not_without(tmp_path, ratio):
    flags = ("--preset=bitflip-dqn", "--mlp_sizes=256", f"--her_ratio={ratio}")
    level = "--level_name=sandbox.bit_flip:BitFlip-v0"
    printed = _train(tmp_path, "dqn", *flags, level, "--stop_at_return=-8", limit=900)
    assert ("the mean return reached -8" in printed) == bool(ratio)
    if not ratio:
        assert read_rows(tmp_path)[-1]["episode_return"] < -14


def test_sac_is_refused_for_choices_in_a_sentence(tmp_path):
    flags = ("--algorithm=sac", "--level_name=CartPole-v1", f"--logdir={tmp_path / 'run'}")
    code, printed = run(*EXPERIMENT, *flags, f"--learner_hosts=127.0.0.1:{free_port()}")
    assert code == 2, printed
    said = (
        "error: --algorithm=sac: SAC chooses numbers (Box), and CartPole-v1 takes one of 2 actions"
    )
    assert said in printed
    assert "Traceback" not in printed
