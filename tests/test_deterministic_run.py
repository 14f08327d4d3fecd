"""--deterministic_run: the same seed gives the same weights and returns, bit for bit."""

import sys

import pytest
import tensorflow as tf
from processes import ROOT, free_port, run
from rows import read_rows

EXPERIMENT = (sys.executable, str(ROOT / "experiment.py"), "--level_name=catch", "--num_actors=1")


def _train(folder, *flags):
    """Train; return the last checkpoint's variables, and the last row."""
    code, printed = run(
        *(*EXPERIMENT, "--deterministic_run", f"--logdir={folder}"),
        *(f"--learner_hosts=127.0.0.1:{free_port()}", "--num_envs=12"),
        *("--save_checkpoint_secs=1000", *flags),
        limit=300,
    )
    assert code == 0, printed
    assert "more actors" not in printed, "they would be refused"
    saved = max((folder / "checkpoints").glob("[0-9]*/variables.index"))
    reader = tf.train.load_checkpoint(str(saved.with_suffix("")))
    found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return {name: value.tobytes() for name, value in found.items() if hasattr(value, "tobytes")}, [
        read_rows(folder)[-1][key] for key in ("frames", "updates", "episode_return", "games")
    ]


def _train_twice(folder, *flags):
    """Train twice with the same seed, and return the same weights."""
    first, again = (_train(folder / name, *flags) for name in ("first", "again"))
    assert first[1] == again[1]
    assert first[0] == again[0]
    assert len(first[0]) > 5
    return first[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--algorithm=ppo", "--batch_size=24"],
        ["--algorithm=dqn"],
        [
            "--algorithm=sac",
            "--level_name=Pendulum-v1",
            "--random_steps=300",
            "--total_environment_frames=3000",
        ],
    ],
    ids=["ppo", "dqn", "sac"],
)
def test_the_same_seed_gives_the_same_weights(tmp_path, flags):
    _train_twice(tmp_path, "--total_environment_frames=6000", *flags)


@pytest.mark.slow
def test_checkpoints_that_another_member_of_a_population_takes_change_no_weight(tmp_path):
    flags = ("--algorithm=ppo", "--batch_size=24", "--total_environment_frames=6000")
    alone, _ = _train(tmp_path / "alone", *flags)
    saving, _ = _train(tmp_path / "saving", *flags, "--save_checkpoint_secs=0.2")
    assert len(list((tmp_path / "saving" / "checkpoints").iterdir())) > 1
    assert saving == alone


@pytest.mark.slow
def test_with_replay_the_same_seed_gives_the_same_weights_and_another_seed_does_not(tmp_path):
    """Each replay is full after a third of the frames."""
    replay = "queue:0.25,uniform:0.25:60,prioritised:0.25:60,elite:0.125:60,attentive:0.125:60"
    flags = ("--algorithm=impala", "--batch_size=8", f"--replay={replay}", "--replay_ratio=1.5")
    flags += ("--total_environment_frames=3600",)
    weights = _train_twice(tmp_path, *flags)
    other, _ = _train(tmp_path / "other", *flags, "--seed=2")
    assert other.keys() == weights.keys()
    assert other != weights
