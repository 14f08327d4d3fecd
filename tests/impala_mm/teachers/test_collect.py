"""Games that teachers play for their student."""

import types

import pytest
import tensorflow as tf
from recorded_catch import terminations

from impala_mm.algorithms.interface import entry_spec
from impala_mm.algorithms.regulariser_settings import RegulariserSettings
from impala_mm.environments.make import level_spec
from impala_mm.evaluation import recording
from impala_mm.replay.data_set import read_about, unroll_spec
from impala_mm.teachers.collect import collect


def test_a_lost_life_ends_an_episode_as_it_does_in_the_students_own_games(tmp_path):
    pytest.importorskip("ale_py")
    level = "BreakoutNoFrameskip-v4"
    spec = level_spec(level)
    teacher = types.SimpleNamespace(
        greedy=False,
        initial_state=lambda batch: (),
        step=lambda entry, state: (tf.zeros([len(entry.first), 4]), state),
    )
    config = RegulariserSettings(level_name=level, teacher="x")
    about = recording.describe(spec, unroll_spec(entry_spec(spec, ()), 20), config)
    collect([teacher], config, spec, tmp_path, about, 200, 1, lambda: None, lambda line: None)
    assert terminations(tmp_path) == 5 * read_about(tmp_path).episodes, "five lives a game"
