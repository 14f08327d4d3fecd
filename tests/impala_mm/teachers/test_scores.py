"""Mean returns of teachers and of random actions."""

import types

import pytest
import tensorflow as tf

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.environments.make import level_spec
from impala_mm.evaluation import games
from impala_mm.teachers.load import load_teachers
from impala_mm.teachers.playing import mean_return


def _settings(**settings):
    return TeacherSettings(level_name="catch, catch", **settings)


def test_a_perfect_catcher_returns_1_and_random_actions_much_less():
    config = _settings(teacher="tests.helpers.scripted:catcher", teacher_episodes=40)
    spec = level_spec("catch")
    (teacher,) = load_teachers(config, spec)
    beats = []
    assert mean_return(teacher, config, spec, lambda *played: beats.append(played)) == 1.0
    assert beats[0] == (0, 80, 0), "of both levels"
    assert len({played for played, _, _ in beats}) > 2
    assert beats == sorted(beats)
    assert mean_return(None, config, spec) == pytest.approx(-0.6, abs=0.4)


def test_an_order_of_actions_counts_in_the_teachers_games():
    """Left and right are exchanged twice: once by the flag, once by the function's wrong answer."""
    config = _settings(teacher="tests.helpers.scripted:catcher", teacher_actions="2,1,0")
    spec = level_spec("catch")
    (teacher,) = load_teachers(config, spec)
    assert mean_return(teacher, config, spec) < 0, "it moves away from the ball"


def test_a_game_of_atari_in_which_a_greedy_teacher_gets_no_reward_is_ended(monkeypatch):
    """Breakout brings no reward while nobody fires."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr(games, "IDLE_STEPS", 30)
    level = "BreakoutNoFrameskip-v4"
    config = TeacherSettings(level_name=level, teacher="x", teacher_episodes=1)
    teacher = types.SimpleNamespace(
        greedy=True,
        initial_state=lambda batch: (),
        step=lambda entry, state: (tf.constant([[1.0, 0, 0, 0]]), state),
    )
    beats = []

    def beat(*played):
        beats.append(1)
        assert len(beats) < 100, "the game has no end"

    assert mean_return(teacher, config, level_spec(level), beat) == 0.0
    assert len(beats) >= 30
