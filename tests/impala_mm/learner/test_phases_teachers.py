"""The start of a student's run: who loads and measures its teachers, and when nobody does."""

import dataclasses
import types

import in_threads
import pytest
import tensorflow as tf

from impala_mm.algorithms.feature import Features
from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.features.teacher import Distillation, Returns
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.q_learning import settings as q_learning_settings
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.types import MeasuredScores, ReferenceScores
from impala_mm.learner import phases, resume
from impala_mm.learner.monitor import RecordKeeper
from impala_mm.records.checkpoint import Mismatch

TEACHER = types.SimpleNamespace(name="x", notes=["it was trained on Pong"], worth=0.0)
BETTER = types.SimpleNamespace(name="better", notes=[], worth=12.0)


def _spec(scores=None):
    return types.SimpleNamespace(frame_stack=1, scores=scores)


class _Tools:
    """The tools of a learner, which record what was asked of them."""

    def __init__(self, teacher=9.0, random=1.0, teachers=(TEACHER,)):
        self.loaded, self.played, self.said, self._teachers = 0, [], [], teachers
        self._returns = {True: teacher, False: random}
        self.tools = phases.PolicyTools(None, self._load, self._play)

    def _load(self, config, spec):
        self.loaded += 1
        return self._teachers

    def _play(self, teacher, config, spec, meanwhile):
        self.played.append(teacher is not None)
        for played in range(3):
            meanwhile(played, 4, 1000 * played)
        return self._returns[teacher is not None] + (teacher.worth if teacher else 0.0)

    def begin(self, distillation, group=None, spec=None, config=None, is_new=True):
        features = Features([distillation] if distillation else [])
        algorithm = types.SimpleNamespace(features=features)
        group, spec = group or SingleLearner(), spec or _spec()
        config = config or (distillation.config if distillation else TeacherSettings())
        agent = types.SimpleNamespace(algorithm=algorithm, spec=spec)
        student = phases.Phases(agent, config, group, None, self.tools, self.said.append)
        return student.begin_teachers(is_new)


def _distillation(**settings):
    return Distillation(TeacherSettings(teacher="x", **{"teacher_method": "qdagger"} | settings))


def test_a_new_run_measures_both_returns_and_a_resumed_one_neither(monkeypatch):
    monkeypatch.setattr(phases, "_LINE_SECONDS", 0.0)
    tools, made = _Tools(teachers=(TEACHER, BETTER)), _distillation()
    assert tools.begin(made) == {"teacher_return": 15.0, "random_return": 1.0}, "of two, the mean"
    assert tools.played == [True, True, False]
    assert made.returns() == Returns(15.0, 1.0)
    assert TEACHER.notes[0] in tools.said
    assert "evaluate: the teacher x, 0 of 4 games, 0 steps" in tools.said
    assert any("a random policy, 2 of 4 games, 2,000 steps | ETA" in line for line in tools.said)
    resumed = _distillation()
    for variable, saved in zip(resumed.schedules, made.schedules, strict=True):
        variable.assign(saved)
    again = _Tools()
    assert again.begin(resumed) == {}
    assert (again.loaded, again.played) == (1, [])


def test_reincarnating_measures_the_teacher_once_whatever_its_method_and_cost():
    expected = {"teacher_return": 1.0, "random_return": 9.0}  # which only a score must not have
    config = TeacherSettings(teacher="x", teacher_cost=0, mode="reincarnate")
    for made in (_distillation(teacher_method="kickstarting", mode="reincarnate"), None):
        given = {"config": None if made else config}
        assert _Tools(teacher=1.0, random=9.0).begin(made, **given) == expected
        resumed = _Tools()
        assert resumed.begin(made, is_new=False, **given) == {}
        assert resumed.played == []
    assert _Tools().begin(None) == {}, "without a teacher there is nothing to do"


@pytest.mark.parametrize("reloads", [True, False])
def test_a_checkpoint_before_the_first_update_would_lack_a_replay_that_was_reloaded(reloads):
    """A run that is killed before its first update has the replay again only if it begins anew."""
    saved = []
    writer = types.SimpleNamespace(write=lambda row: None)
    saves = types.SimpleNamespace(save_start=lambda: saved.append(1))
    config = dataclasses.replace(_distillation().config, reload_replay=reloads)
    learner = types.SimpleNamespace(frames=0, steps=0, updates=0)
    status = types.SimpleNamespace(config=config, learner=learner, seconds=1.0)
    keeper = RecordKeeper(status, writer, saves, None, None)
    keeper.add_measured({"teacher_return": 1.0})
    assert len(saved) == (not reloads)


def test_returns_that_are_known_are_not_measured():
    tools, spec = _Tools(), _spec(MeasuredScores(-2.0, 9.0))
    found = tools.begin(_distillation(teacher_return=5.0), spec=spec)
    assert found == {"teacher_return": 5.0, "random_return": -2.0}
    assert tools.played == []
    least = _spec(ReferenceScores(-2.0, 9.0))  # -2 is the least that is possible
    found = _Tools().begin(_distillation(teacher_return=5.0), spec=least)
    assert found == {"teacher_return": 5.0, "random_return": 1.0}
    several = _distillation(teacher_return=5.0, level_name="PongNoFrameskip-v4, catch")
    found = tools.begin(several, spec=spec)
    assert found == {"teacher_return": 5.0, "random_return": 1.0}, "the score is of one level"
    tools = _Tools()
    assert tools.begin(_distillation(teacher_method="kickstarting")) == {}
    assert (tools.loaded, tools.played) == (1, [])


def test_a_teacher_whose_cost_has_fallen_to_0_is_not_loaded():
    tools, made = _Tools(), _distillation(teacher_frames=10)
    tools.begin(made)
    made.begin_update(Context(tf.constant(11.0), tf.constant(20.0), tf.constant(0.0)))
    again = _Tools()
    assert again.begin(made) == {}
    assert not again.loaded


def test_rank_0_measures_and_all_learners_know_it():
    tools = [_Tools(), _Tools()]
    made = [_distillation(), _distillation()]
    found = in_threads.together(2, lambda of: tools[of.rank].begin(made[of.rank], of))
    assert found[0] == {"teacher_return": 9.0, "random_return": 1.0}
    assert [each.played for each in tools] == [[True, False], []]
    assert made[1].returns() == Returns(9.0, 1.0)
    assert [len(each.said) > 0 for each in tools] == [True, False]


def test_a_teacher_that_is_no_better_than_random_actions_is_refused_on_all_learners():
    for found in in_threads.together(
        2, lambda of: _Tools(teacher=1.0, random=1.0).begin(_distillation(), of)
    ):
        assert isinstance(found, phases.UnfitTeacher)
        assert "--teacher=x has a mean return of 1.00" in str(found)


def test_a_resumed_run_does_not_take_another_teacher_for_the_one_whose_return_it_knows():
    about = types.SimpleNamespace(settings={"teacher": "runs/a"})

    def check(**settings):
        resume.check_teacher(about, TeacherSettings(**settings), "runs/student")

    with pytest.raises(Mismatch, match="learns from runs/a"):
        check(teacher="runs/b", teacher_method="qdagger")
    margin = q_learning_settings.QLearningSettings(teacher="runs/b", teacher_method="dqfd")
    with pytest.raises(Mismatch, match="learns from runs/a"):
        resume.check_teacher(about, margin, "runs/student")
    check(teacher="runs/b", teacher_method="qdagger", teacher_return=7.0)
    check(teacher="runs/b", teacher_method="kickstarting")
    check(teacher="runs/a", teacher_method="qdagger")
    check()
