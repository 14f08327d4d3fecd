"""PPO and its kin in real runs: rounds, resuming, recurrent networks, learners, inference."""

import re
import sys

import numpy as np
import pytest
import tensorflow as tf
from processes import EXPERIMENT, Process, free_port, needs_horovod, run
from rows import read_rows

import impala_mm

pytestmark = pytest.mark.slow
# Rounds of 512 steps: shorter than by default, so that tests see many of them.
SHORT = ("--unroll_length=32", "--minibatches=4", "--learning_rate=0.001")
CARTPOLE = ("--algorithm=ppo", "--level_name=CartPole-v1", *SHORT)
# Rewards a thousand times larger than usual, which PopArt makes bearable.
LARGE = ("--reward_scaling=1000", "--value_normalization=popart", "--normalize_rewards=false")
TWO = ("--num_learners=2", "--check_sync_every=20")


class Training(Process):
    """A run, with its folder in `tmp_path`."""

    def __init__(self, tmp_path, *flags):
        self.logdir = tmp_path / "run"
        address = f"--learner_hosts=127.0.0.1:{free_port()}"
        super().__init__(*EXPERIMENT, address, f"--logdir={self.logdir}", *flags)

    def end(self, seconds=400):
        """Wait for the end, which the run reaches by itself; return its rows."""
        assert self.wait(seconds) == 0, self.printed()
        return read_rows(self.logdir)


def _last(rows, key):
    """Return the newest value of a metric, which rows without an update lack."""
    return [row[key] for row in rows if key in row][-1]


def _all(rows, key):
    return {row[key] for row in rows if key in row}


def _scalars(logdir):
    """Return the newest checkpoint's carried variables that are scalars, by their keys."""
    newest = max((logdir / "checkpoints").iterdir())
    reader = tf.train.load_checkpoint(str(newest / "variables"))
    shapes = reader.get_variable_to_shape_map()
    names = [name for name, shape in shapes.items() if name.startswith("carried/") and not shape]
    return {name: float(reader.get_tensor(name)) for name in names}


def _tested_return(logdir):
    code, printed = run(*EXPERIMENT, "--mode=test", "--deterministic", f"--logdir={logdir}")
    assert code == 0, printed
    return float(re.search(r"\nreturn +(-?[\d.]+)", printed)[1])


def test_ppo_learns_large_rewards_and_is_resumed_tested_and_exported(tmp_path):
    flags = (*CARTPOLE, *LARGE, "--save_checkpoint_secs=5")
    first = Training(tmp_path, *flags, "--total_environment_frames=1e9")
    first.until(r"return (?:[3-9]\d|\d\d\d)\.\d", 300)
    first.interrupt()
    rows = read_rows(first.logdir)
    updates, mean = rows[-1]["updates"], _last(rows, "value_mean")
    assert updates > 0
    assert _last(rows, "value_deviation") > 1000
    frames = 512 * updates + 40_000
    rows = Training(tmp_path, *flags, f"--total_environment_frames={frames}").end()
    assert rows[-1]["updates"] >= updates + 70
    after = next(row for row in rows if row["updates"] > updates and "value_mean" in row)
    assert after["value_mean"] == pytest.approx(mean, rel=0.5), "it was restored"
    assert _all(rows, "policy_lag") == {0.0}
    assert {"entropy", "approx_kl", "clip_fraction", "explained_variance"} <= rows[-1].keys()
    assert 10 * 4 * rows[-1]["updates"] in _scalars(first.logdir).values(), "all were counted"
    assert rows[-1]["episode_return"] > 120, "random actions return 22"
    assert _tested_return(first.logdir) > 150
    policy = impala_mm.load_policy(first.logdir)
    judged = policy.judge(
        policy.entry(np.zeros([1, 4], "f"), [1.0], np.zeros([1], np.int32), [False]),
        policy.initial_state(1),
    )
    assert 10_000 < float(judged.value[0]) < 150_000, "the discounted return of a balanced pole"
    code, printed = run(*EXPERIMENT, "--mode=export", f"--logdir={first.logdir}")
    assert code == 0, printed
    code, printed = run(sys.executable, "example.py", cwd=first.logdir / "export")
    assert code == 0, printed


def test_ppo_learns_a_masked_game_of_several_choices_with_a_recurrent_network(tmp_path):
    """Rooms raises an error if a forbidden choice arrives; drawing evenly returns 6.0 of 10."""
    level = ("--level_name=tests.helpers.acting:Rooms-v0", "--agent_name=MLPLSTMAgent")
    goal = ("--discounting=0.5", "--stop_at_return=8.5", "--total_environment_frames=100000")
    training = Training(tmp_path, "--algorithm=ppo", *SHORT, *level, *goal)
    training.end()
    assert "the mean return reached 8.5" in training.printed()
    assert "is rebuilt" not in training.printed()


@needs_horovod
def test_two_learners_of_half_a_batch_that_infer_learn_cartpole_and_hold_equal_variables(tmp_path):
    """So do PopArt's mean and deviation: they compare all their variables, bit for bit."""
    flags = (*CARTPOLE, *LARGE, *TWO, "--batch_size=8", "--target_kl=0.05", "--inference=learner")
    rows = Training(tmp_path, *flags, "--total_environment_frames=40000").end()
    assert rows[-1]["sync_checks"] > 0
    assert rows[-1]["sync_repairs"] == 0
    assert rows[-1]["episode_return"] > 100
    assert _all(rows, "policy_lag") == {0.0}
    assert _last(rows, "optimizer_steps") <= 40
    assert _last(rows, "value_deviation") > 1000


@needs_horovod
def test_two_learners_share_novelty_and_a_rate_by_divergence_which_a_resume_goes_on_with(tmp_path):
    flags = (*CARTPOLE, "--num_learners=2", "--check_sync_every=2", "--batch_size=8")
    flags += ("--rnd_weight=1", "--learning_rate_kl=0.02", "--num_actors=2")
    first = Training(tmp_path, *flags, "--total_environment_frames=10000")
    rows = first.end()
    assert rows[-1]["sync_checks"] > 0
    assert rows[-1]["sync_repairs"] == 0
    assert rows[-1]["intrinsic_reward"] > 0
    (rate,) = (x for name, x in _scalars(first.logdir).items() if "adaptive_rate" in name)
    updates = rows[-1]["updates"]
    assert rate != pytest.approx(0.001)
    rows = Training(tmp_path, *flags, "--total_environment_frames=12000").end()
    assert rows[-1]["sync_repairs"] == 0
    after = next(row for row in rows if row["updates"] == updates + 1)
    ratio = after["learning_rate"] / rate
    assert min(abs(ratio - x) for x in (1 / 1.5, 1, 1.5)) < 1e-3


def test_a_reward_that_chance_never_finds_is_found_by_novelty(tmp_path):
    flags = ("--algorithm=ppo", "--level_name=sandbox.small_games:Stairs-v0", "--num_actors=1")
    goal = ("--stop_at_return=0.9", "--total_environment_frames=150000")
    rows = Training(tmp_path, *flags, *goal, "--rnd_weight=1").end()
    assert rows[-1]["episode_return"] >= 0.9
    frames = f"--total_environment_frames={rows[-1]['frames']:.0f}"
    assert Training(tmp_path / "plain", *flags, frames).end()[-1]["episode_return"] == 0


def test_rounds_that_overlap_are_said_and_their_lag_is_at_most_1(tmp_path):
    flags = (*CARTPOLE, "--inference=learner", "--rounds_overlap")
    training = Training(tmp_path, *flags, "--total_environment_frames=40000")
    rows = training.end()
    assert "rounds overlap: actors play one by the policy before the update" in training.printed()
    # A busy machine may hold up an actor for longer than a round waits for it.
    missed = rows[-1]["unrolls_padded"] + rows[-1]["unrolls_dropped"]
    assert missed < 0.1 * 16 * rows[-1]["updates"]
    # Where a core is not free for the learner, the next policy is there before an unroll begins.
    assert 0 < max(row["policy_lag"] for row in rows if "policy_lag" in row) <= 1
    assert rows[-1]["episode_return"] > 80


@pytest.mark.parametrize("algorithm", ["a2c", "vpg"])
def test_its_kin_learn_cartpole(tmp_path, algorithm):
    flags = (f"--algorithm={algorithm}", "--stop_at_return=150", "--max_seconds=240")
    training = Training(tmp_path, *flags, "--total_environment_frames=1e6")
    training.end()
    assert "the mean return reached 150" in training.printed()
