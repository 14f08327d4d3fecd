"""Games that teachers play for their student."""

import types

import pytest
import tensorflow as tf
from recorded_catch import terminations

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.interface import entry_spec
from impala_mm.environments.make import level_spec
from impala_mm.evaluation import recording
from impala_mm.replay.data_set import read_about, unroll_spec
from impala_mm.teachers.load import load_teachers
from impala_mm.teachers.playing import _fill, collect


def test_a_lost_life_ends_an_episode_as_it_does_in_the_students_own_games(tmp_path):
    pytest.importorskip("ale_py")
    level = "BreakoutNoFrameskip-v4"
    spec = level_spec(level)
    teacher = types.SimpleNamespace(
        name="x",
        greedy=False,
        initial_state=lambda batch: (),
        step=lambda entry, state: (tf.zeros([len(entry.first), 4]), state),
    )
    config = TeacherSettings(level_name=level, teacher="x")
    about = recording.describe(spec, unroll_spec(entry_spec(spec, ()), 20), config)
    collect([teacher], config, spec, tmp_path, about, 120, 0, lambda: None, lambda line: None)
    assert terminations(tmp_path) == 5 * read_about(tmp_path).episodes, "five lives a game"


class _Killed(Exception):
    """What ends the process while a teacher plays."""


def test_after_a_kill_all_teachers_still_have_equal_parts(tmp_path, monkeypatch):
    config = TeacherSettings(
        level_name="catch", teacher="tests.helpers.scripted:catcher,tests.helpers.scripted:unsure"
    )
    spec, lines = level_spec("catch"), []
    teachers = load_teachers(config, spec)
    about = recording.describe(spec, unroll_spec(entry_spec(spec, ()), 5), config)

    def parts():
        return read_about(tmp_path).parts

    def play(steps):
        collect(teachers, config, spec, tmp_path, about, steps, 0, lambda: None, lines.append)

    def kill(entry, state):
        raise _Killed

    monkeypatch.setattr(teachers[1], "step", kill)
    with pytest.raises(_Killed):
        play(400)
    monkeypatch.undo()
    (first,) = parts().values()
    assert 200 <= first < 260
    play(400 - first)
    assert list(parts()) == [f"tests.helpers.scripted:{n} on catch" for n in ("catcher", "unsure")]
    kept, second = parts().values()
    assert (kept, second >= 400 - first) == (first, True)
    assert sum(parts().values()) == read_about(tmp_path).steps


@pytest.mark.parametrize(
    ("steps", "before", "expected"),
    [
        (10, [0, 0, 0], [3, 3, 4]),
        (25, [25, 0], [0, 25]),
        (12, [5, 40, 0, 1], [1, 0, 6, 5]),
        (1, [2, 2], [0, 1]),
    ],
)
def test_steps_are_divided_so_that_parts_become_equal(steps, before, expected):
    assert _fill(steps, before) == expected
