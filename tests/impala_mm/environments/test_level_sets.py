"""Suites of levels: a suite's name for all of its levels, their scores, and what makes them."""

import importlib.util

import numpy as np
import pytest

from impala_mm.environments import SUITES, level_sets
from impala_mm.environments.level_sets import published_scores
from impala_mm.environments.make import level_names, level_spec, make_environments
from impala_mm.environments.types import BadLevel, ReferenceScores


def test_a_suites_name_stands_for_its_levels():
    assert level_names("CartPole-v1, catch") == ["CartPole-v1", "catch"]
    sizes = {"procgen16": 16, "procgen16-hard": 16, "minigrid": 12, "metaworld-mt10": 10, "dmc": 28}
    for name, size in sizes.items():
        assert len(set(level_names(name))) == size
        assert level_names(name) == SUITES[name]().level_names(name, "")
    lab = level_names("catch,dmlab")
    assert len(lab) == 31
    assert "dmlab:rooms_collect_good_objects_train" in lab, "a run trains on the training levels"
    assert "dmlab:rooms_collect_good_objects_test" in SUITES["dmlab"]().level_names("dmlab", "")


def test_levels_that_others_make_have_the_scores_of_their_set(monkeypatch):
    assert published_scores("envpool:CoinrunEasy-v0") == (5, 10)
    assert published_scores("envpool:StarpilotHard-v0") == (1.5, 35)
    assert level_spec("CartPole-v1").scores is None
    monkeypatch.setitem(level_sets._SETS["minigrid"], "CartPole-v1", ReferenceScores(0, 500))
    assert level_spec("CartPole-v1").scores == (0, 500)
    with pytest.raises(BadLevel, match="procgen16 is a set of levels: name one of them, envpool:B"):
        level_spec("procgen16")


@pytest.mark.parametrize(
    ("level", "module"),
    [("dmc:cheetah-run", "dm_control"), ("metaworld-mt10:reach-v3", "metaworld")],
)
def test_a_package_that_is_missing_is_named(monkeypatch, level, module):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else found(name)
    )
    with pytest.raises(BadLevel, match=f"needs {module}: pip install"):
        level_spec(level)


@pytest.mark.slow
def test_a_task_of_deepmind_control_is_that_of_its_package():
    suite = pytest.importorskip("dm_control.suite")
    envs = make_environments("dmc:cheetah-run", 2, seed=5)
    spec = envs.spec
    assert (spec.observation.shape, spec.scores) == ((17,), (0, 1000))
    theirs = suite.load("cheetah", "run", task_kwargs={"random": np.random.RandomState(6)})
    numbers, step, now = np.random.default_rng(0), envs.reset(), theirs.reset()
    for i in range(1000):
        due = np.concatenate([np.ravel(part) for part in now.observation.values()])
        assert np.allclose(step.observation[1], due, atol=1e-5)
        assert not step.truncated.any()
        action = numbers.uniform(-1, 1, (2, 6)).astype(np.float32)
        step, now = envs.step(action), theirs.step(action[1])
        assert step.reward[1] == pytest.approx(now.reward, abs=1e-6)
        assert now.last() == (i == 999)
    assert step.truncated.all()
    assert not step.terminated.any()
    assert envs.step(action).first.all()
    assert {episode.length for episode in envs.episodes()} == {1000}
    with pytest.raises(BadLevel, match="dmc:cheetah-fly is no level of the suite dmc"):
        level_spec("dmc:cheetah-fly")


@pytest.mark.slow
def test_a_task_of_mt10_observes_its_number():
    pytest.importorskip("metaworld")
    seen = []
    for task in ("reach-v3", "window-close-v3"):
        envs = make_environments(f"metaworld-mt10:{task}", 1, seed=0)
        assert envs.spec.scores == (0, 5000)
        seen.append(envs.reset().observation[0, -10:].argmax())
        for _ in range(500):
            step = envs.step(np.zeros((1, 4), np.float32))
        assert step.truncated.all()
        assert envs.faults == []
        envs.close()
    assert seen == [0, 9]
