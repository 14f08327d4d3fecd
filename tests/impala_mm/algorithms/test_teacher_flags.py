"""The note about flags of a teacher that have no effect beside the others."""

import json

import pytest

from impala_mm.algorithms import teacher_flags
from impala_mm.algorithms.impala import settings as impala_settings
from impala_mm.algorithms.q_learning import settings as dqn_settings
from impala_mm.config.settings import Config

_NO_TEACHER = "(there is no --teacher)"


def _note(of=impala_settings.ImpalaSettings, **settings):
    return teacher_flags.note_unused(of(**settings))


def test_whoever_forgets_the_teacher_is_told_what_has_no_effect():
    said = _note(teacher_method="qdagger", teacher_frames=1e6, teacher_steps=9)
    assert said == (
        "note: without effect: --teacher_steps=9 (no --offline_updates and no "
        f"--teacher_data_share), --teacher_method=qdagger {_NO_TEACHER}, "
        f"--teacher_frames=1000000.0 {_NO_TEACHER}"
    )
    for name in ("teacher_cost", "teacher_temperature", "random_return", "teacher_episodes"):
        assert _note(**{name: 7}) == f"note: without effect: --{name}=7 {_NO_TEACHER}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"teacher_cost": 0, "distill": "value"}, "--distill=value (--teacher_cost=0)"),
        ({"teacher_cost": 0, "teacher_rate": 0.1}, "--teacher_rate=0.1 (--teacher_cost=0)"),
        ({"teacher_cost": 0, "teacher_frames": 9.0}, "--teacher_frames=9.0 (--teacher_cost=0)"),
        ({"teacher_cost": 0, "teacher_frames": 9.0, "guide_steps": 5}, ""),
        (
            {"teacher_steps": 9, "offline_updates": 1, "teacher_data": "x"},
            "--teacher_steps=9 (--teacher_data=x)",
        ),
        ({"teacher_steps": 9, "offline_updates": 1}, ""),
        ({"teacher_return": 5.0}, "--teacher_return=5.0 (--teacher_method=kickstarting)"),
        ({"teacher_episodes": 5}, "--teacher_episodes=5 (--teacher_method=kickstarting)"),
        ({"teacher_episodes": 5, "mode": "reincarnate"}, ""),
        ({"teacher_episodes": 5, "teacher_method": "qdagger", "random_return": 0.0}, ""),
        ({"teacher_margin": 2.0}, "--teacher_margin=2.0 (--distill names no margin)"),
        ({"teacher_temperature": 2.0, "distill": "best_action", "teacher_rate": 0.1}, ""),
    ],
)
def test_flags_beside_a_teacher_that_does_not_need_them_are_named(settings, said):
    assert _note(teacher="x", **settings) == (said and f"note: without effect: {said}")


def test_what_is_learned_without_a_teacher_reads_its_flags():
    assert not _note(teacher_cost=2.0, offline_updates=5, teacher_data="x")
    of_values = {"of": dqn_settings.DQNSettings, "algorithm": "dqn", "teacher_data": "x"}
    of_values |= {"offline_updates": 5}
    assert not _note(margin_cost=1.0, teacher_margin=0.8, **of_values)
    assert _NO_TEACHER in _note(teacher_cost=2.0, **of_values)


def test_what_a_mode_sets_is_not_named():
    settings = {"teacher": "x", "teacher_cost": 0, "teacher_method": "qdagger"}
    settings |= {"mode": "reincarnate"}
    assert "--teacher_method=qdagger" in _note(**settings)
    origins = json.dumps({"mode reincarnate": ["teacher_method"]})
    assert not _note(**settings, origins=origins)
    assert not teacher_flags.note_unused(Config())
