"""PopArt in real runs: rewards a thousand times larger, resuming, export, and two learners."""

import signal
import sys

import numpy as np
import pytest
from processes import EXPERIMENT, Process, free_port, needs_horovod, run
from rows import read_rows

import impala_mm

pytestmark = pytest.mark.slow
LARGE = ("--level_name=CartPole-v1", "--reward_scaling=1000", "--value_normalization=popart")
PPO = ("--algorithm=ppo", "--normalize_rewards=false")


class Training(Process):
    """A run, with its folder in `tmp_path`."""

    def __init__(self, tmp_path, *flags):
        self.logdir = tmp_path / "run"
        address = f"--learner_hosts=127.0.0.1:{free_port()}"
        super().__init__(*EXPERIMENT, address, f"--logdir={self.logdir}", *LARGE, *flags)

    def end(self, seconds=600):
        assert self.process.wait(seconds) == 0, self.printed()
        return read_rows(self.logdir)


def test_ppo_learns_large_rewards_and_is_resumed_and_exported(tmp_path):
    first = Training(tmp_path, *PPO, "--save_checkpoint_secs=5", "--stop_at_return=450")
    first.until(r"return (?:[4-9]\d|\d\d\d)\.\d", 500)
    first.process.send_signal(signal.SIGINT)
    assert first.wait(60) == 130, first.printed()
    before = [row for row in read_rows(first.logdir) if "value_deviation" in row][-1]
    assert before["value_deviation"] > 1000
    goal = max(150, before.get("episode_return", 0) + 50)  # it may have learnt while it was stopped
    rows = Training(tmp_path, *PPO, f"--stop_at_return={goal}").end()
    after = next(row for row in rows if row["updates"] > before["updates"] and "value_mean" in row)
    assert after["value_mean"] == pytest.approx(before["value_mean"], rel=0.5), "it was restored"
    assert rows[-1]["episode_return"] >= goal
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


@needs_horovod
def test_two_learners_hold_the_same_mean_and_deviation(tmp_path):
    """The learners compare all their variables, bit for bit, every 20 updates."""
    flags = ("--num_learners=2", "--check_sync_every=20", "--batch_size=8")
    rows = Training(tmp_path, *flags, "--total_environment_frames=40000").end()
    assert rows[-1]["sync_checks"] > 0
    assert rows[-1]["sync_repairs"] == 0
    assert [row["value_deviation"] for row in rows if "value_deviation" in row][-1] > 1000
