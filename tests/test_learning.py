"""Training that takes minutes and reaches its goal; part of `make test-slow`."""

import re
import sys

import pytest
from processes import EXPERIMENT, ROOT, free_port, run
from rows import read_rows

pytestmark = pytest.mark.slow


def _train(logdir, *flags):
    """Run to the end, and return the rows."""
    code, printed = run(
        *EXPERIMENT,
        f"--learner_hosts=localhost:{free_port()}",
        f"--logdir={logdir}",
        *flags,
        limit=600,
    )
    assert code == 0, printed
    return read_rows(logdir)


def test_cartpole_is_solved_in_under_a_minute_of_training(tmp_path):
    rows = _train(tmp_path, "--level_name=CartPole-v1", "--max_seconds=60")
    assert rows[-1]["episode_return"] >= 475
    assert rows[-1]["seconds"] < 60


def test_pong_gets_going_in_as_many_frames_as_recorded():
    """Its seconds are not judged, since other programs may run here."""
    words = ["pong", "--until=-19.5", f"--learner_hosts=localhost:{free_port()}"]
    verify = (sys.executable, ROOT / "sandbox" / "results", "verify")
    _, printed = run(*verify, *words, "--max_seconds=1600", limit=1700)
    frames, most = re.search(r"-19\.50 +([\d,]+|never) +([\d,]+)", printed).groups()
    assert frames != "never", printed
    assert int(frames.replace(",", "")) <= int(most.replace(",", ""))


@pytest.mark.parametrize("agent_name", ["MLPLSTMAgent", "MLPGTrXLAgent"])
def test_a_memory_task_needs_a_memory(agent_name, tmp_path):
    flags = ["--level_name=memory", "--total_environment_frames=600000"]
    solved = [f"--agent_name={agent_name}", "--stop_at_return=0.96"]
    rows = _train(tmp_path / "core", *flags, *solved)
    assert rows[-1]["episode_return"] > 0.95
    used = f"--total_environment_frames={max(rows[-1]['frames'], 100_000):.0f}"
    rows = _train(tmp_path / "mlp", *flags[:-1], "--agent_name=MLPAgent", used)
    # Guessing returns 0.5; the mean of 100 such episodes has a standard deviation of 0.05.
    assert rows[-1]["episode_return"] < 0.65


def test_sentences_are_read_in_the_order_of_their_words(tmp_path):
    flags = ["--level_name=tests.helpers.acting:Tales-v0", "--algorithm=ppo", "--discounting=0"]
    rows = _train(tmp_path, *flags, "--total_environment_frames=40000", "--stop_at_return=9.7")
    assert rows[-1]["episode_return"] > 9.5, "of 10; those who know both animals reach 5"


def test_tictactoe_with_its_mask_is_learnt_in_as_many_frames_as_recorded():
    words = ["tictactoe", "--until=0.7", f"--learner_hosts=localhost:{free_port()}"]
    code, printed = run(sys.executable, ROOT / "sandbox" / "results", "verify", *words, limit=600)
    assert code == 0, printed
