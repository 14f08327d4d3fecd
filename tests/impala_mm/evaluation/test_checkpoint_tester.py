"""An evaluator tests the newest checkpoint once; deleted and damaged ones do not end it."""

import shutil

import pytest
import tensorflow as tf
from saved_run import evaluations, save
from tensorboard.backend.event_processing import event_accumulator

from impala_mm.evaluation import game_video
from impala_mm.evaluation.checkpoint_tester import CheckpointTester, Film


def _evaluator(logdir, said, levels=("catch",), film=None, **changed):
    how = {"num_episodes": 3, "num_envs": 2, "deterministic": False, "seed": 1} | changed
    return CheckpointTester(
        logdir,
        lambda about: list(levels),
        {"seed": 1},
        meanwhile=lambda games, steps: True,
        say=said.append,
        film=film,
        **how,
    )


def _had(logdir):
    return [row["updates"] for row in evaluations(logdir)]


def test_each_newest_checkpoint_is_tested_once_and_those_between_are_not(tmp_path):
    said = []
    evaluator = _evaluator(tmp_path, said)
    assert not evaluator.test_newest(), "there is not even a folder"
    for updates in (2, 3):
        save(tmp_path, updates, frames=updates * 1e3, level_name="catch")
    assert evaluator.test_newest()
    assert not evaluator.test_newest()
    save(tmp_path, 4, frames=4e3, level_name="catch")
    assert evaluator.test_newest()
    assert _had(tmp_path) == [3, 4]
    assert evaluator.newest.frames == 4e3
    assert "of 3 games at 4,000 frames" in said[-1]

    again = _evaluator(tmp_path, said)
    assert not again.test_newest(), "what was tested before the restart is not tested again"
    assert _evaluator(tmp_path, said, deterministic=True).test_newest(), "that is another test"


def test_a_video_of_each_checkpoint_is_recorded_until_one_cannot_be(tmp_path):
    said, film = [], tmp_path / "videos" / "x.mp4"

    def make_film(policy, level):
        name_of = game_video.action_namer(policy, level)
        return Film(film, lambda playing: [game_video.GameVideo(film, 10.0, name_of)])

    evaluator = _evaluator(tmp_path, said, film=make_film)
    save(tmp_path, 1, level_name="catch")
    assert evaluator.test_newest()
    assert evaluations(tmp_path)[-1]["video"] == "videos/x.mp4"
    assert film.stat().st_size > 1000
    shutil.rmtree(film.parent)
    film.parent.touch()
    save(tmp_path, 2, level_name="catch")
    assert evaluator.test_newest()
    assert "the tests go on without videos" in said[-2]
    assert "video" not in evaluations(tmp_path)[-1]


def test_policies_of_values_are_tested_too(tmp_path):
    save(tmp_path, 1, level_name="catch", algorithm="dqn")
    assert _evaluator(tmp_path, []).test_newest()
    assert len(evaluations(tmp_path)[0]["returns"]) == 3


def test_a_record_says_what_was_played_and_tensorboard_draws_it_at_its_frames(tmp_path):
    save(tmp_path, 7, frames=7e3, level_name="catch")
    _evaluator(tmp_path, []).test_newest()
    (row,) = evaluations(tmp_path)
    assert row["by"] == "evaluator"
    assert (row["level"], row["updates"], row["frames"]) == ("catch", 7, 7e3)
    assert row["checkpoint"] == str(tmp_path / "checkpoints" / "0000000007")
    assert (row["seed"], row["num_envs"], row["deterministic"]) == (1, 2, False)
    assert len(row["returns"]) == 3
    assert row["lengths"] == [9] * 3
    assert row["mean"] == pytest.approx(sum(row["returns"]) / 3)
    events = event_accumulator.EventAccumulator(
        str(tmp_path / "events-evaluation"), size_guidance={event_accumulator.TENSORS: 0}
    )
    events.Reload()
    (drawn,) = events.Tensors("evaluation/return")
    assert drawn.step == 7000
    assert tf.make_ndarray(drawn.tensor_proto) == pytest.approx(row["mean"])
    assert tf.make_ndarray(events.Tensors("evaluation/length")[0].tensor_proto) == 9


def test_damaged_checkpoints_are_said_once_and_the_one_before_is_tested(tmp_path):
    said = []
    evaluator = _evaluator(tmp_path, said)
    save(tmp_path, 1, level_name="catch")
    path = save(tmp_path, 2, level_name="catch")
    data = next(path.glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:-9])
    assert evaluator.test_newest()
    assert not evaluator.test_newest()
    assert _had(tmp_path) == [1]
    assert len([line for line in said if "is cut short since it was written" in line]) == 1
    shutil.rmtree(path)  # the learner writes it again
    save(tmp_path, 2, level_name="catch")
    assert evaluator.test_newest()
    assert _had(tmp_path) == [1, 2]


def test_a_level_that_was_missed_when_it_ended_is_made_up_for(tmp_path):
    levels = ("gym:CartPole-v1", "CartPole-v1")
    save(tmp_path, 1, level_name=",".join(levels))
    assert _evaluator(tmp_path, [], levels[:1]).test_newest()
    both = _evaluator(tmp_path, [], levels)
    assert both.test_newest()
    assert [row["level"] for row in evaluations(tmp_path)] == list(levels)
    assert not both.test_newest()


def test_whether_the_newest_checkpoint_is_played_is_known_and_no_cut_one_recorded(tmp_path):
    save(tmp_path, 1, level_name="catch")
    evaluator, newest = _evaluator(tmp_path, []), []
    assert not evaluator.plays_newest()

    def play(games, steps):
        newest.append(evaluator.plays_newest())
        if steps:
            save(tmp_path, 2, level_name="catch")
        return len(newest) < 3

    evaluator._meanwhile = play
    assert not evaluator.test_newest()
    assert newest == [True, True, False]
    assert not (tmp_path / "evaluations.jsonl").exists()


def test_after_a_resume_with_another_environment_that_one_is_played(tmp_path):
    evaluator = _evaluator(tmp_path, [], levels=("tmaze",))
    for updates, length in ((1, 3), (2, 9)):
        save(tmp_path, updates, level_name="tmaze", env_kwargs=f'{{"length": {length}}}')
        assert evaluator.test_newest()
    first, second = [row["mean_length"] for row in evaluations(tmp_path)]
    assert second > first
