"""DeepMind Lab behind a stand-in of its module: steps, instructions, settings, and bad input."""

import json
import sys

import numpy as np
import pytest
from processes import ROOT

from impala_mm.environments import SUITES
from impala_mm.environments.make import action_names, level_spec, make_environments
from impala_mm.environments.types import BadLevel

FORWARD, BACKWARD = 0, 1


@pytest.fixture
def lab(monkeypatch):
    """Make the stand-in importable, here and in worker processes; return it."""
    monkeypatch.syspath_prepend(ROOT / "tests/helpers/lab")
    import deepmind_lab  # noqa: PLC0415

    deepmind_lab.CALLS.clear()
    yield deepmind_lab
    del sys.modules["deepmind_lab"]


def _called(lab, name):
    return [argument for each, argument in lab.CALLS if each == name]


def _play(steps, level="dmlab:rooms_watermaze", seed=3, workers=0, **options):
    """Return copies of the steps of two environments that walk forward and stay."""
    envs = make_environments(level, 2, seed, workers=workers, **options)
    played = [envs.reset()] + [None] * steps
    played[0] = played[0]._replace(**_copies(played[0]))
    for i in range(steps):
        step = envs.step(np.array([FORWARD, BACKWARD]))
        played[i + 1] = step._replace(**_copies(step))
    episodes = envs.episodes()
    assert envs.faults == []
    envs.close()
    return played, episodes


def _copies(step):
    observation = step.observation
    if isinstance(observation, dict):
        observation = {key: array.copy() for key, array in observation.items()}
    arrays = ("reward", "terminated", "truncated", "first")
    return {name: getattr(step, name).copy() for name in arrays} | {"observation": observation}


def test_an_episode_ends_with_the_last_observation_and_the_next_has_a_new_map(lab):
    _play(1)  # an environment is reset before it plays: has its first info a mask?
    lab.CALLS.clear()
    played, episodes = _play(18)
    assert set(_called(lab, "step")) == {4}, "the engine repeats the action"
    ends = [i for i, step in enumerate(played) if step.terminated.any()]
    assert ends == [8, 17], "30 frames are 7 steps of 4 and one of 2"
    assert [i for i, step in enumerate(played) if step.first.all()] == [0, 9, 18]
    images = [int(step.observation["image"][0, 0, 0, 0]) for step in played[:10]]
    assert images == [0, 4, 8, 12, 16, 20, 24, 28, 28, 0]
    assert played[0].observation["image"].shape == (2, 72, 96, 3)
    assert not any(step.truncated.any() for step in played)
    maps = _called(lab, "reset")
    assert len(set(maps)) == 6, "each environment and episode has a seed of its own"
    rewards = np.random.default_rng(maps[0]).integers(0, 5, lab.EPISODE + 1)
    assert episodes[0].episode_return == rewards[1:].sum()
    assert episodes[0].length == 8
    lab.CALLS.clear()
    assert _play(18)[1] == episodes
    assert _called(lab, "reset") == maps
    assert _play(18, workers=2)[1] == episodes


def test_a_level_is_known_before_it_is_played(lab):
    spec = level_spec("dmlab:rooms_watermaze")
    assert (spec.action_repeats, spec.num_actions, spec.scores) == (4, 9, (4.065, 54))
    assert action_names("dmlab:rooms_watermaze", spec.actions)[6] == "forward, look left"
    assert spec.observation["image"].shape == (72, 96, 3)
    changed = level_spec(
        "dmlab:tests/empty_room_test",
        env_kwargs=json.dumps({"instruction": False, "config": {"botCount": 2, "fast": True}}),
        num_action_repeats=2,
        width=64,
        height=48,
    )
    assert (changed.action_repeats, changed.scores) == (2, None)
    assert changed.observation.shape == (48, 64, 3)
    (level, config, _) = _called(lab, "Lab")[-1]
    assert level == "tests/empty_room_test"
    assert (config["botCount"], config["fast"], config["width"]) == ("2", "true", "64")
    held_out = {"held_out": True, "renderer": "hardware", "runfiles": "/lab"}
    level_spec("dmlab:rooms_collect_good_objects_test", env_kwargs=json.dumps(held_out))
    (level, config, renderer) = _called(lab, "Lab")[-1]
    assert level == "contributed/dmlab30/rooms_collect_good_objects_test"
    assert (config["allowHoldOutLevels"], config["mixerSeed"]) == ("true", str(0x600D5EED))
    assert (renderer, _called(lab, "set_runfiles_path")) == ("hardware", ["/lab"])


def test_an_instruction_is_read_as_numbers_of_its_words(lab):
    (first, *_, last), _ = _play(9, "dmlab:language_select_described_object")
    words, later = (step.observation["instruction"] for step in (first, last))
    assert last.first.all()
    assert words[0].any()
    assert (words[0] == words[1]).all()
    assert (words[0] != later[0]).any()
    (silent, *_), _ = _play(1)
    assert not silent.observation["instruction"].any()
    assert silent.observation["instruction"].shape == words.shape, "one network fits all levels"


def test_actors_share_the_maps_that_one_has_compiled(lab, tmp_path):
    options = {"env_kwargs": json.dumps({"level_cache": str(tmp_path / "maps")})}
    _, episodes = _play(18, **options)
    compiled = _called(lab, "compile")
    assert len(compiled) >= 6
    assert len(list(tmp_path.glob("maps/???/*"))) == len(set(compiled)) == len(compiled)
    lab.CALLS.clear()
    assert _play(18, **options)[1] == episodes
    assert _called(lab, "compile") == []


def test_dmlab_30_has_thirty_levels_with_scores():
    suite = SUITES["dmlab"]()
    assert len(suite.levels) == 30
    assert all(scores.high > scores.low for scores in suite.scores.values())
    trained, tested = (f"rooms_collect_good_objects_{use}" for use in ("train", "test"))
    assert suite.scores[trained] == suite.scores[tested]


def test_bad_input_is_a_sentence(lab, monkeypatch):
    with pytest.raises(BadLevel, match="dmlab:watermaze cannot be made: DeepMind Lab answers: Inv"):
        level_spec("dmlab:watermaze")
    for wrong in ('{"frames": 2}', '{"cache": "maps"}'):
        with pytest.raises(BadLevel, match=r"cannot be made with --env_kwargs=.*argument"):
            level_spec("dmlab:rooms_watermaze", env_kwargs=wrong)
    with pytest.raises(BadLevel, match="write dmlab:rooms_watermaze"):
        level_spec("dmlab")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("/lab")])
    monkeypatch.delitem(sys.modules, "deepmind_lab")
    with pytest.raises(BadLevel, match=r"needs deepmind_lab.*sandbox/dmlab.md"):
        level_spec("dmlab:rooms_watermaze")
    sys.modules["deepmind_lab"] = lab
