"""Targets of entropy and divergences, a reference policy, AWR and V-MPO in real runs."""

import pytest
from processes import EXPERIMENT, Process, free_port, needs_horovod, run
from rows import read_rows

pytestmark = pytest.mark.slow
SHORT = ("--unroll_length=32", "--minibatches=4", "--learning_rate=0.001")


def _train(logdir, *flags):
    """Return the rows of a run that ends by itself."""
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    code, printed = run(*EXPERIMENT, address, f"--logdir={logdir}", *flags, limit=400)
    assert code == 0, printed
    return read_rows(logdir)


def _mean(rows, key, share=0.3):
    """Return a metric's mean over the last rows that have it."""
    values = [row[key] for row in rows if key in row]
    last = values[-max(1, int(share * len(values))) :]
    return sum(last) / len(last)


def test_impala_holds_its_entropy_and_resumes_with_the_cost_that_held_it(tmp_path):
    flags = ("--level_name=CartPole-v1", "--target_entropy=0.6", "--save_checkpoint_secs=2")
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    first = Process(*EXPERIMENT, address, f"--logdir={tmp_path}", *flags)
    first.until(r"checkpoint at update \d\d\d", 300)
    first.interrupt()
    before = [row["entropy_cost"] for row in read_rows(tmp_path) if "entropy_cost" in row]
    frames = ("--total_environment_frames=300000", "--stop_at_return=1e9")
    rows = _train(tmp_path, *flags, *frames)
    costs = [row["entropy_cost"] for row in rows if "entropy_cost" in row]
    ended, began = costs[len(before) - 1 : len(before) + 1]
    assert 0.2 < began / ended < 5
    entropy = -_mean(rows, "loss_per_step/entropy", share=0.2)
    assert entropy == pytest.approx(0.6, abs=0.02), "without a target it is 0.55"


def test_a_policy_stays_near_its_reference(tmp_path):
    _train(tmp_path / "one", "--level_name=catch", "--stop_at_return=0.9")
    reference = (f"--reference={tmp_path / 'one'}", "--target_kl_ref_pi=0.02")
    length = ("--total_environment_frames=60000", "--stop_at_return=2")
    rows = _train(tmp_path / "two", "--level_name=catch", *reference, *length)
    assert _mean(rows, "kl_ref_pi") < 0.06
    costs = [row["kl_ref_pi_cost"] for row in rows if "kl_ref_pi_cost" in row]
    assert max(costs) > 1e-4, "it falls again once the policy is near"
    assert rows[-1]["episode_return"] > 0.4, "random actions return -0.6"


GOAL = ("--stop_at_return=200", "--max_seconds=300", "--total_environment_frames=1e6")


def test_awr_learns_cartpole(tmp_path):
    rows = _train(tmp_path, "--level_name=CartPole-v1", *SHORT, "--algorithm=awr", *GOAL)
    assert rows[-1]["episode_return"] >= 200


@needs_horovod
def test_vmpo_learns_cartpole_on_two_learners_with_the_same_variables_and_multipliers(tmp_path):
    two = ("--num_learners=2", "--batch_size=8", "--check_sync_every=10", "--target_entropy=0.5")
    flags = ("--algorithm=vmpo", "--level_name=CartPole-v1", *SHORT, *two)
    rows = _train(tmp_path, *flags, *GOAL)
    assert rows[-1]["episode_return"] >= 200
    assert rows[-1]["sync_checks"] > 0
    assert rows[-1]["sync_repairs"] == 0
    costs = [row["entropy_cost"] for row in rows if "entropy_cost" in row]
    assert costs[-1] != pytest.approx(0.01, rel=0.01)
