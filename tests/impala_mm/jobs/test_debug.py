"""Training in one process, computed eagerly: --debug."""

import json

import pytest
from processes import EXPERIMENT, run

_ALGORITHM = """
from tests.helpers import dqn_like

sums = []


def make(config, environment):
    return Seen(config, environment)


class Seen(dqn_like.DQNLike):
    def act(self, entry, core_state, exploration):
        self.acted = float(entry.reward.numpy()[0])
        return super().act(entry, core_state, exploration)

    def update(self, batch, context, exchange):
        sums.append(float(batch.unrolls.reward.numpy().sum()))
        print("sums", sums, flush=True)
        return super().update(batch, context, exchange)
"""


def _debug(folder, *flags):
    return run(*EXPERIMENT, "--debug", "--level_name=CartPole-v1", f"--logdir={folder}", *flags)


@pytest.mark.slow
def test_python_in_an_algorithm_sees_the_values_of_every_call(tmp_path):
    (tmp_path / "seen.py").write_text(_ALGORITHM)
    code, printed = run(
        *(*EXPERIMENT, "--debug", "--level_name=CartPole-v1", f"--logdir={tmp_path / 'run'}"),
        *("--algorithm=seen", "--total_environment_frames=450", "--batch_size=8"),
        PYTHONPATH=str(tmp_path),
    )
    assert code == 0, printed
    sums = [line for line in printed.splitlines() if line.startswith("sums")]
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1])
    assert last["frames"] >= 450
    assert last["updates"] == len(sums) >= 3, printed
    assert all(value > 0 for value in json.loads(sums[-1].removeprefix("sums ")))
    assert "slow" in printed


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "r2d2"])
def test_it_trains_with_rounds_and_with_replay(algorithm, tmp_path):
    of_ppo = ["--minibatches=1", "--epochs=1"] if algorithm == "ppo" else []
    flags = [f"--algorithm={algorithm}", "--total_environment_frames=400", "--batch_size=8"]
    code, printed = _debug(tmp_path, *flags, *of_ppo)
    assert code == 0, printed
    assert "finished: reached 400 frames" in printed


def test_what_does_not_go_with_it_is_refused(tmp_path):
    code, printed = _debug(tmp_path, "--num_learners=2", "--xla")
    assert code == 2
    assert "leave out --num_learners and --xla" in printed
