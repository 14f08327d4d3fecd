"""DQN, R2D2 and SAC in real runs: they learn, resume, are tested and exported, on two learners."""

import re

import numpy as np
import pytest
import tensorflow as tf
from processes import EXPERIMENT, free_port, needs_horovod, run
from rows import read_rows

pytestmark = pytest.mark.slow
CARTPOLE = ("--algorithm=dqn", "--level_name=CartPole-v1")
C51 = ("--value_distribution=categorical", "--v_min=0", "--v_max=100", "--noisy")
IQN = (
    "--value_distribution=quantiles",
    *(f"--num_{which}quantiles=8" for which in ("", "target_", "policy_")),
)
PENDULUM = ("--algorithm=sac", "--level_name=Pendulum-v1")
RUNS = {
    "c51": (*CARTPOLE, *C51, "--mlp_sizes=32", "--duelling", "--n_steps=3"),
    "r2d2": ("--algorithm=r2d2", "--level_name=memory", "--unroll_length=10", "--burn_in=4"),
    "sac": (*PENDULUM, "--mlp_sizes=32", "--random_steps=200"),
    "td3": ("--algorithm=td3", *PENDULUM[1:], "--mlp_sizes=32", "--random_steps=200"),
    "mpo": ("--algorithm=mpo", *PENDULUM[1:], "--mlp_sizes=32", "--random_steps=200"),
}
TWO = ("--num_learners=2", "--num_actors=2", "--check_sync_every=5")


def _train(logdir, *flags, limit=900):
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    command = (*EXPERIMENT, "--num_actors=1", f"--logdir={logdir}", address, *flags)
    code, printed = run(*command, limit=limit)
    assert code == 0, printed
    return printed


def _tested(logdir):
    """Return the mean return of 50 games of a run's policy."""
    code, printed = run(
        *EXPERIMENT, f"--logdir={logdir}", "--mode=test", "--test_num_episodes=50", limit=120
    )
    assert code == 0, printed
    return float(re.search(r"return +(-?[\d.]+)", printed)[1])


def _last_update(logdir):
    """Return the last row that measured an update: there may be none before a run's last row."""
    return [row for row in read_rows(logdir) if "loss/total" in row][-1]


@pytest.mark.parametrize(
    ("name", "learners"),
    [
        ("c51", ("--inference=learner",)),
        pytest.param("r2d2", (*TWO, "--inference=learner"), marks=needs_horovod),
        pytest.param("sac", TWO, marks=needs_horovod),
        pytest.param("td3", TWO, marks=needs_horovod),
        pytest.param("mpo", TWO, marks=needs_horovod),
    ],
    ids=[
        *("c51", "r2d2 on two learners that infer"),
        *(f"{name} on two learners" for name in ("sac", "td3", "mpo")),
    ],
)
def test_a_run_is_resumed_tested_and_exported(tmp_path, name, learners):
    logdir, flags = tmp_path / "run", (*RUNS[name], *learners, "--replay_save")
    _train(logdir, *flags, "--total_environment_frames=3000")
    before = _last_update(logdir)
    assert np.isfinite(before["loss/total"])
    assert before["replay_share"] > 0.5
    printed = _train(logdir, *flags, "--total_environment_frames=6000")
    assert re.search(r"restored its replay \(", printed), printed
    after = _last_update(logdir)
    assert after["updates"] > before["updates"]
    held = next(key for key in after if key.startswith("replay_unrolls/"))
    assert after[held] > before[held], "the replay went on where it was"
    if learners[:3] == TWO:
        assert len(list((logdir / "own").glob("learner-*"))) == 2, "each has its replay"
        last = read_rows(logdir)[-1]
        assert last["sync_checks"] > 2
        assert last["sync_repairs"] == 0
    _tested(logdir)
    export = ("--mode=export", f"--export_dir={tmp_path / 'export'}")
    code, printed = run(*EXPERIMENT, f"--logdir={logdir}", *export)
    assert code == 0, printed
    exported = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    assert ("value" if name in ("sac", "td3", "mpo") else "values") in exported.structured_outputs


@pytest.mark.parametrize(
    ("parts", "goal"), [((), 475), (C51, 200), (IQN, 150)], ids=["dqn", "noisy c51", "iqn"]
)
def test_dqn_and_the_parts_of_rainbow_learn_cartpole(tmp_path, parts, goal):
    """A random policy has a mean return of 22, and noise lowers the one that is measured."""
    preset = ("--preset=classic-dqn", "--mlp_sizes=256,256", f"--stop_at_return={goal}")
    assert f"the mean return reached {goal}" in _train(tmp_path, *CARTPOLE, *preset, *parts)


def test_drq_learns_from_pictures(tmp_path):
    """A random policy has a mean return of -0.6."""
    flags = (
        *("--algorithm=dqn", "--level_name=tests.helpers.games:PictureCatch"),
        *("--random_shift=2", "--value_shifts=1", "--target_shifts=1"),
        *("--n_steps=3", "--duelling", "--batch_size=16"),
        *("--epsilon_frames=4000", "--epsilon_end=0.02", "--learning_rate=0.001"),
        *("--target_share=0.02", "--num_envs=4", "--total_environment_frames=12000"),
    )
    _train(tmp_path, *flags)
    assert _tested(tmp_path) > 0.8


def test_sac_swings_the_pendulum_up_within_10_000_steps(tmp_path):
    preset = ("--preset=pendulum-sac", "--mlp_sizes=256,256", "--random_steps=1000")
    _train(tmp_path, *PENDULUM, *preset, "--total_environment_frames=10000")
    assert _tested(tmp_path) > -200


def test_td3_swings_the_pendulum_up_within_15_000_steps(tmp_path):
    flags = ("--algorithm=td3", "--level_name=Pendulum-v1", "--random_steps=1000")
    _train(tmp_path, *flags, "--learning_rate=0.001", "--total_environment_frames=15000")
    assert _tested(tmp_path) > -250


def test_mpo_swings_the_pendulum_up_within_16_000_steps(tmp_path):
    mlp = "--mlp_sizes=64,64"
    flags = ("--algorithm=mpo", "--level_name=Pendulum-v1", "--preset=pendulum-mpo", mlp)
    _train(tmp_path, *flags, "--total_environment_frames=16000")
    assert _tested(tmp_path) > -250


@needs_horovod
def test_pqn_learns_cartpole_on_two_learners(tmp_path):
    """A random policy has a mean return of 22. PQN forgets at times, so it is tested at 300."""
    flags = ("--algorithm=pqn", "--level_name=CartPole-v1", *TWO, "--batch_size=8")
    printed = _train(tmp_path, *flags, "--total_environment_frames=500000", "--stop_at_return=300")
    assert "the mean return reached 300" in printed
    last = read_rows(tmp_path)[-1]
    assert (last["sync_checks"] > 2, last["sync_repairs"]) == (True, 0)
    assert _tested(tmp_path) > 150


def test_r2d2_remembers_the_sign_of_the_t_maze(tmp_path):
    flags = ("--preset=tmaze-r2d2", "--level_name=tmaze", "--unroll_length=24", "--burn_in=8")
    _train(tmp_path, "--algorithm=r2d2", *flags)
    assert _tested(tmp_path) > 0.8


def test_fifteen_bits_are_flipped_to_a_goal_with_hindsight(tmp_path):
    """Without it the mean return stays below -14."""
    flags = ("--preset=bitflip-dqn", "--mlp_sizes=256", "--stop_at_return=-8")
    printed = _train(tmp_path, *flags, "--level_name=sandbox.bit_flip:BitFlip-v0")
    assert "the mean return reached -8" in printed
