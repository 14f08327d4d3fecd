"""The start of a run with recorded games: what is collected, who reads what, what is refused."""

import re
import types

import in_threads
import numpy as np
import pytest
import scripted
import tensorflow as tf
from recorded_catch import record_catch, rewrite

from impala_mm.algorithms.agent import make_agent
from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.distributed.group import SingleLearner
from impala_mm.evaluation import recording
from impala_mm.learner import phases
from impala_mm.learner.sources.recorded import PhasedSource
from impala_mm.replay import steps
from impala_mm.replay.data_set import read_about
from impala_mm.runtime import machine
from impala_mm.teachers.load import load_teachers
from impala_mm.teachers.playing import collect

CATCHER = "tests.helpers.scripted:catcher"


class _Tools:
    """The tools of a learner, which record what was collected."""

    def __init__(self, stops_after=10**9):
        self.collected, self._beats, self._stops_after = [], 0, stops_after
        self.tools = phases.PolicyTools(
            None, load_teachers, None, self._collect, recording.describe, self._stopping
        )

    def _collect(self, teachers, config, spec, folder, about, steps, *rest):
        self.collected.append(steps)
        collect(teachers, config, spec, folder, about, steps, *rest)

    def _stopping(self):
        self._beats += 1
        return self._beats > self._stops_after


def _begin(run, tools=None, group=None, left=10, updates=0, **settings):
    group = group or SingleLearner()
    flags = {"teacher": CATCHER, "teacher_steps": 300, "offline_updates": 10} | settings
    kind = Config.of_algorithm(settings.get("algorithm", "impala"))
    config = kind(level_name="catch", unroll_length=5, batch_size=4, **flags)
    agent = make_agent(config, group.rank)
    tools, said = tools or _Tools(), []
    if distillation := agent.algorithm.features.get(Distillation):
        distillation.begin(tools.tools.load_teachers(config, agent.spec), 1)
    source = PhasedSource(types.SimpleNamespace(next=lambda timeout: "online"))
    student = phases.Phases(agent, config, group, run, tools.tools, said.append)
    student.begin_data(source, left, updates)
    return source, said, tools


def test_the_teacher_plays_what_is_missing_and_no_more(tmp_path):
    source, said, tools = _begin(tmp_path)
    assert tools.collected == [300]
    assert "offline: 10 updates from " in said[-1]
    batch = source.next(30.0)
    assert batch.unrolls.reward.shape == (6, 4)
    about = read_about(tmp_path / "teacher_data" / "learner-0")
    assert about.mean_return == 1.0, "the teacher catches every ball"
    assert about.policy == CATCHER
    assert 300 <= about.steps < 340
    _, _, again = _begin(tmp_path)
    assert again.collected == []
    _, _, more = _begin(tmp_path, teacher_steps=500)
    assert 100 < more.collected[0] < 200


def test_a_phase_that_is_over_collects_nothing(tmp_path):
    source, _, tools = _begin(tmp_path, left=0)
    assert tools.collected == []
    assert source.next(0.0) == "online"


@pytest.mark.slow  # test_collect ends in the middle, too
def test_a_user_who_stops_while_the_teacher_plays_keeps_what_was_played(tmp_path):
    with pytest.raises(phases.Stopped):
        _begin(tmp_path, _Tools(stops_after=60), teacher_steps=1_500)
    _, _, tools = _begin(tmp_path, teacher_steps=1_500)
    assert tools.collected[0] < 1_400


def test_games_that_are_given_are_read_and_nothing_is_collected(tmp_path):
    record_catch(tmp_path / "a", 3, 7, scripted.catcher)
    record_catch(tmp_path / "b", 2, 4)
    folders = f"{tmp_path / 'a'}, {tmp_path / 'b'}"
    source, said, tools = _begin(tmp_path / "run", teacher="", teacher_data=folders)
    assert tools.collected == []
    assert not (tmp_path / "run").exists()
    steps = 3 * (3 * 10 - 1) + 3 * (2 * 10 - 1)
    assert f"from {steps} recorded steps" in said[-1]
    assert source.next(30.0) is not None


@pytest.mark.parametrize(("part", "number", "which"), [("action", 7, 2), ("reward", np.nan, 0)])
def test_games_that_would_spoil_an_update_are_refused_by_their_file(tmp_path, part, number, which):
    record_catch(tmp_path / "given", 4, 8, num_envs=1)

    def spoil(unroll, entries):
        if unroll == which:
            getattr(entries, part)[0, 4] = number

    rewrite(tmp_path / "given", spoil)

    def learn():
        source, _, _ = _begin(tmp_path, teacher="", teacher_data=str(tmp_path / "given"))
        for _ in range(20):  # an unroll within a game is read when it is drawn
            source.next(0.5)

    with pytest.raises(UserMistake, match=f"given/0000000000.unrolls .*its {part} contains"):
        learn()


@pytest.mark.parametrize("data", ["", "given"])
def test_two_learners_learn_from_different_unrolls(tmp_path, data):
    if data:
        record_catch(tmp_path / "given", 8, 5)
        data = str(tmp_path / "given")

    def start(of):
        tools = _Tools()
        source, _, _ = _begin(tmp_path, tools, of, teacher_data=data)
        batches = [source.next(30.0).unrolls for _ in range(3)]
        seen = {
            (b.observation.numpy()[:, i].tobytes(), b.reward.numpy()[:, i].tobytes())
            for b in batches
            for i in range(4)
        }
        return tools.collected, seen

    (first, ours), (second, theirs) = in_threads.together(2, start)
    assert first == second == ([] if data else [150])
    assert len(ours & theirs) < 0.5 * len(ours), "balls may fall alike"


def test_data_that_does_not_fit_ends_all_learners_in_a_sentence(tmp_path):
    def start(of):
        folder = tmp_path / ("nothing" if of.rank else "data")
        return _begin(tmp_path, None, of, teacher_data=str(folder))

    record_catch(tmp_path / "data", 2, 5)
    for found in in_threads.together(2, start):
        assert isinstance(found, phases.UnfitTeacher)
        assert re.match("--teacher_data: .* does not exist", str(found))


def test_an_algorithm_without_the_method_is_refused():
    config = ImpalaSettings(offline_updates=9, teacher="x")

    class Offline(Algorithm):
        def offline_update(self, batch, context, exchange):
            pass

    assert "no method offline_update" in phases.why_unsuitable(config, Algorithm())
    assert not phases.why_unsuitable(config, Offline())
    assert not phases.why_unsuitable(ImpalaSettings(), Algorithm())


def _columns(source):
    """Return which columns of the next batch are recorded games."""
    batch = source.next(30.0)
    return (np.asarray(batch.key) == -1).tolist()


def test_recorded_games_stay_in_the_batches_of_students_of_values(tmp_path):
    flags = {"algorithm": "r2d2", "teacher_data_share": 0.4, "teacher_cost": 0.0, "burn_in": 2}
    source, said, _ = _begin(tmp_path, left=2, **flags)
    assert "online: 42.9% of each update is from " in said[-1]
    (batch,) = [source.next(30.0) for _ in range(2)][1:]
    played = batch._replace(key=tf.range(4, dtype=tf.int64))
    source._online = types.SimpleNamespace(next=lambda timeout: played)
    assert _columns(source) == [False] * 4 + [True] * 3
    # A run that is resumed later has no offline updates left.
    resumed, said, tools = _begin(tmp_path, left=0, **flags)
    assert tools.collected == []
    assert len(said) == 1
    resumed._online = source._online
    assert _columns(resumed) == [False] * 4 + [True] * 3


def test_each_start_draws_other_recorded_columns(tmp_path):
    """Otherwise a run that is resumed often would learn from the same few unrolls."""
    flags = {"algorithm": "dqn", "teacher_data_share": 0.5, "teacher_cost": 0.0}

    def drawn(updates):
        source, _, _ = _begin(tmp_path, left=0, updates=updates, **flags)
        batch = source._beside.next(30.0)
        return batch.unrolls.observation.numpy().tobytes(), batch.unrolls.action.numpy().tobytes()

    first = drawn(10)
    assert drawn(10) == first
    assert drawn(11) != first


def test_a_replay_of_recorded_games_that_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    record_catch(tmp_path / "data", 4, 5)
    flags = {"algorithm": "sac", "discrete_sac": True, "teacher_data": str(tmp_path / "data")}
    with pytest.raises(phases.Stopped):
        _begin(tmp_path, _Tools(stops_after=0), teacher="", **flags)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 1_000)
    monkeypatch.setattr(steps, "refuse_too_large", lambda *given: None)
    with pytest.raises(phases.UnfitTeacher, match=r"recorded games: memory for \d+ unrolls"):
        _begin(tmp_path, teacher="", **flags)


def test_sac_draws_steps_of_recorded_games_for_each_of_its_minibatches(tmp_path):
    flags = {"algorithm": "sac", "discrete_sac": True, "teacher_data_share": 0.5}
    flags |= {"minibatch_steps": 16, "updates_per_step": 0.2, "random_steps": 0}
    source, _, _ = _begin(tmp_path, left=1, **flags)
    batch = source.next(30.0)
    assert batch.unrolls.reward.shape == (2, 4 * 16), "whole batches of four minibatches"
    assert set(batch.key.numpy()) == {-1}
    assert not batch.fresh.numpy().any()
    played = batch._replace(key=tf.range(64, dtype=tf.int64))
    source._online = types.SimpleNamespace(next=lambda timeout: played)
    assert _columns(source) == [False] * 64 + [True] * 64


@pytest.mark.parametrize(
    ("algorithm", "flags", "said"),
    [
        ("impala", {"teacher_data_share": 0.5}, "--algorithm=impala must know how likely"),
        ("impala", {"offline_updates": 9}, "--offline_updates=9 needs recorded games"),
        ("dqn", {"teacher_data_share": 0.5}, "--teacher_data_share=0.5 needs recorded games"),
        (
            "sac",
            {"teacher_data": "x", "offline_updates": 3, "her_ratio": 4},
            "--her_ratio=4: recorded games have no goals",
        ),
        (
            "impala",
            {"offline_updates": 3, "teacher_data": "x", "teacher_cost": 0.0},
            "a policy learns nothing from recorded games",
        ),
    ],
)
def test_what_recorded_games_cannot_do_is_refused(algorithm, flags, said):
    with pytest.raises(ValueError, match=said):
        Config.of_algorithm(algorithm)(algorithm=algorithm, **flags)


def test_a_policy_with_a_teacher_and_a_student_of_values_learn_from_recorded_games():
    ImpalaSettings(offline_updates=9, teacher="x")
    ImpalaSettings(offline_updates=9, teacher_data="x")
    Config.of_algorithm("dqn")(offline_updates=3, teacher_data="x", teacher_cost=0.0)
