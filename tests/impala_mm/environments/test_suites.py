"""Suites of levels: one from outside; the 57 games, with ids of the same kind as the run's."""

import gymnasium
import numpy as np
import pytest

from impala_mm.config import user_modules
from impala_mm.environments import SUITES, Level, Suite
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.types import BadLevel


@pytest.fixture
def registers(monkeypatch):
    """Let a test add suites that no other test sees."""
    monkeypatch.setattr(SUITES, "_things", dict(SUITES._things))
    monkeypatch.setattr(user_modules, "_imported", {})
    return SUITES.register


def test_a_suite_from_outside_answers_for_its_levels(registers):
    user_modules.import_all("sandbox.own_suite")
    spec = level_spec("corridors:8")
    assert (spec.level_name, spec.scores, spec.reward_threshold) == (
        *("corridors:8", (0.28, 1.0), 0.95),
    )
    assert level_spec("corridors:5").scores is None
    names = SUITES["corridors"]().level_names("corridors", "catch")
    assert names[1:] == ["corridors:8", "corridors:16"]
    for workers in (0, 1):  # which import the module, too
        envs = make_environments("corridors:4", 2, seed=0, workers=workers)
        envs.reset()
        for _ in range(4):
            step = envs.step(np.array([1, 0]))
        assert step.reward.tolist() == [1, 0]
        envs.close()
    with pytest.raises(BadLevel, match="corridors:x is no level of the suite"):
        level_spec("corridors:x")


def test_a_suite_may_step_its_environments_itself(registers):
    class Own(Level):
        def __init__(self, name):
            self.name = name

        def spec(self):
            return level_spec("catch")._replace(level_name=self.name)

        def make(self, num_envs, seed, renders=False, workers=0):
            return num_envs, seed, renders, workers

    class Vectors(Suite):
        def find(self, level, level_name, options):
            return Own(level_name) if level == "fast" and options.width == 8 else None

    registers("vectors", Vectors)
    assert level_spec("vectors:fast", width=8).level_name == "vectors:fast"
    assert make_environments("vectors:fast", 3, 5, True, 2, width=8) == (3, 5, True, 2)
    with pytest.raises(BadLevel, match="no module named 'vectors'"):
        level_spec("vectors:fast")


def test_a_module_that_has_the_name_of_a_game_is_found(tmp_path, monkeypatch):
    (tmp_path / "tmaze.py").write_text("from impala_mm.environments.small_games import Catch")
    monkeypatch.syspath_prepend(tmp_path)
    assert level_spec("tmaze:Catch").num_actions == level_spec("Catch").num_actions


@pytest.mark.parametrize(
    ("like", "due"),
    [
        ("ALE/Breakout-v5", "ALE/MontezumaRevenge-v5"),
        ("CartPole-v1", "MontezumaRevengeNoFrameskip-v4"),
    ],
)
def test_every_game_of_the_suite_has_an_id_that_is_known(like, due):
    pytest.importorskip("ale_py")
    games = SUITES["atari57"]().level_names("atari57", like)
    assert due in games
    assert len(set(games)) == 57
    assert [game for game in games if game not in gymnasium.registry] == []


def test_all_18_actions_are_there_where_the_emulator_leaves_some_out():
    """FIRE has no effect in Skiing, where UPFIRE is UP; a network with 18 actions can play it."""
    ale_py = pytest.importorskip("ale_py")
    options, played = {"full_action_space": True, "no_ops": 0}, []
    for names in (["UPFIRE", "LEFTFIRE", "FIRE"], ["UP", "LEFT", "NOOP"]):
        actions = [list(ale_py.Action.__members__).index(name) for name in names]
        envs = make_environments("SkiingNoFrameskip-v4", 1, seed=0, **options)
        assert envs.spec.num_actions == 18
        envs.reset()
        played.append([envs.step(np.array([action])).observation for action in actions * 20])
        assert envs.faults == []
    assert np.array_equal(*played)
    assert len({picture.tobytes() for picture in played[0]}) > 10


def test_the_game_that_ale_py_names_v5_alone_is_as_the_others():
    pytest.importorskip("ale_py")
    surround = level_spec("SurroundNoFrameskip-v4")
    assert surround.action_repeats == 4
    assert surround.scores == (-10.0, 6.5)
    registered = gymnasium.registry
    for version in ("v0", "v4"):
        of_pong = registered[f"PongNoFrameskip-{version}"].kwargs
        assert registered[f"SurroundNoFrameskip-{version}"].kwargs == of_pong | {"game": "surround"}
