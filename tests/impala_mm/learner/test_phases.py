"""The start of a run with recorded games: what is collected, who reads what, what is refused."""

import types

import in_threads
import pytest
import scripted
from recorded_catch import record_catch

from impala_mm.algorithms.agent import make_agent
from impala_mm.algorithms.impala_settings import Settings
from impala_mm.distributed.group import SingleLearner
from impala_mm.evaluation import recording
from impala_mm.learner import phases, teaching
from impala_mm.learner.offline_source import PhasedSource
from impala_mm.replay.data_set import read_about
from impala_mm.teachers.collect import collect
from impala_mm.teachers.load import load_teachers

CATCHER = "tests.helpers.scripted:catcher"


class _Tools:
    """The tools of a learner, which record what was collected."""

    def __init__(self, stops_after=10**9):
        self.collected, self._beats, self._stops_after = [], 0, stops_after
        self.tools = teaching.PolicyTools(
            None, load_teachers, None, self._collect, recording.describe, self._stopping
        )

    def _collect(self, teachers, config, spec, folder, about, steps, *rest):
        self.collected.append(steps)
        collect(teachers, config, spec, folder, about, steps, *rest)

    def _stopping(self):
        self._beats += 1
        return self._beats > self._stops_after


def _begin(run, tools=None, group=None, left=10, **settings):
    group = group or SingleLearner()
    flags = {"teacher": CATCHER, "teacher_steps": 300, "offline_updates": 10} | settings
    config = Settings(level_name="catch", unroll_length=5, batch_size=4, **flags)
    agent = make_agent(config, group.rank)
    tools, said = tools or _Tools(), []
    if distillation := agent.algorithm.distillation:
        distillation.begin(tools.tools.load_teachers(config, agent.spec), 1)
    source = PhasedSource(types.SimpleNamespace(next=lambda timeout: "online"))
    phases.begin(agent, config, group, run, left, source, tools.tools, said.append)
    return source, said, tools


def test_the_teacher_plays_what_is_missing_and_no_more(tmp_path):
    source, said, tools = _begin(tmp_path)
    assert tools.collected == [300]
    assert any("collect: the teacher plays 300 steps" in line for line in said)
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


def test_a_user_who_stops_while_the_teacher_plays_keeps_what_was_played(tmp_path):
    with pytest.raises(teaching.Stopped):
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
    with pytest.raises(teaching.UnfitTeacher, match=r"--teacher_data: .* does not exist: give the"):
        _begin(tmp_path, teacher_data=str(tmp_path / "nothing"))

    def start(of):
        folder = tmp_path / ("nothing" if of.rank else "data")
        return _begin(tmp_path, None, of, teacher_data=str(folder))

    record_catch(tmp_path / "data", 2, 5)
    found = in_threads.together(2, start)
    assert [type(each) for each in found] == [teaching.UnfitTeacher] * 2


def test_flags_that_have_no_effect_are_refused():
    with pytest.raises(ValueError, match="--teacher_data=x has no effect without --offline_updat"):
        Settings(teacher_data="x")
    with pytest.raises(ValueError, match="--offline_updates=9 needs recorded games: give --teach"):
        Settings(offline_updates=9)
    Settings(offline_updates=9, teacher_data="x")
    Settings(offline_updates=9, teacher="x")


def test_an_algorithm_without_the_method_is_refused():
    config = Settings(offline_updates=9, teacher="x")
    why = phases.why_unsuitable(config, types.SimpleNamespace())
    assert why.startswith("--offline_updates=9: --algorithm=impala has no method offline_update")
    assert not phases.why_unsuitable(config, types.SimpleNamespace(offline_update=print))
    assert not phases.why_unsuitable(Settings(), types.SimpleNamespace())


def test_games_that_cannot_be_written_are_said(tmp_path):
    (tmp_path / "teacher_data").write_text("a file")
    with pytest.raises(teaching.UnfitTeacher, match="cannot be written"):
        _begin(tmp_path)
