"""Environments are made with arguments, by functions and classes, and are wrapped."""

import re

import gymnasium
import making
import numpy as np
import pytest

from impala_mm.algorithms import agent
from impala_mm.config.settings import Config
from impala_mm.environments import check, from_flags
from impala_mm.environments.make import action_names, level_spec, make_environments
from impala_mm.environments.types import BadLevel, Options


@pytest.mark.parametrize(
    ("level", "kwargs", "width"),
    [
        ("making:Walk-v0", "", 5),
        ("making:Walk-v0", '{"length": 7}', 7),
        ("making:Walk", "", 4),
        ("making:Walk", '{"length": 2}', 2),
        ("making:make_walk", '{"length": 3}', 3),
        ("FrozenLake-v1", '{"map_name": "8x8"}', 64),
        ("gym:FrozenLake-v1", '{"map_name": "8x8"}', 64),
    ],
)
def test_arguments_reach_registered_levels_functions_and_classes(level, kwargs, width):
    spec = level_spec(level, env_kwargs=kwargs)
    assert spec.level_name == level
    assert spec.observation.shape == [width]


def test_the_last_wrapper_is_the_outermost():
    for wrappers, reward in (
        ("making:Times,making:Plus", 11),
        ("making:Plus,making:Times", 20),
        ('making:Plus,making:Times{"factor": 3}', 6),
    ):
        played = make_environments("making:Walk-v0", 1, 0, env_wrappers=wrappers)
        played.reset()
        assert played.step(np.ones(1, np.int32)).reward == reward


def test_gymnasiums_arguments_and_wrappers_work():
    limit = 'gymnasium.wrappers:TimeLimit{"max_episode_steps": 2}'
    for options in ({"env_kwargs": '{"max_episode_steps": 2}'}, {"env_wrappers": limit}):
        played = make_environments("making:Walk-v0", 1, 0, **options)
        played.reset()
        cut = [bool(played.step(np.zeros(1, np.int32)).truncated[0]) for _ in range(2)]
        assert cut == [False, True]


def test_a_function_with_a_render_mode_makes_pictures():
    played = make_environments("making:make_walk", 2, 0, True, env_kwargs='{"length": 3}')
    played.reset()
    assert played.picture().shape == (8, 8, 3)
    assert played.picture_rate == 10


@pytest.mark.parametrize("name", ["OnlyShown", "WithoutArgument"])
def test_a_class_that_takes_no_render_mode_for_pictures_is_made_without_it(name):
    played = make_environments(f"making:{name}", 1, 0, True)
    assert not played.reset().fault.any()
    with pytest.raises(BadLevel, match="draws no pictures"):
        played.picture()


def test_a_registered_function_with_a_render_mode_makes_pictures():
    gymnasium.register("Drawn-v0", entry_point=making.make_walk, kwargs={"length": 3})
    gymnasium.register("DrawnByName-v0", entry_point="making:make_walk", kwargs={"length": 3})
    for name in ("Drawn-v0", "DrawnByName-v0"):
        played = make_environments(name, 1, 0, True)
        played.reset()
        assert played.picture().shape == (8, 8, 3)


def test_numbers_of_frames_are_ales():
    pytest.importorskip("ale_py")
    pong = "PongNoFrameskip-v4"
    assert level_spec(pong).action_repeats == 4
    assert level_spec(pong, env_kwargs='{"frameskip": 1}').action_repeats == 1
    with pytest.raises(BadLevel, match="frameskip is 0, and must be at least 1"):
        level_spec(pong, env_kwargs='{"frameskip": 0}')
    for limit, cut in ((0, False), (8, True)):
        limited = f'{{"max_num_frames_per_episode": {limit}}}'
        played = make_environments(pong, 1, 1, env_kwargs=limited)
        played.reset()
        steps = [played.step(np.zeros(1, np.int32)) for _ in range(3)]
        assert any(step.truncated[0] for step in steps) == cut
        played.close()


def test_an_object_with_nothing_but_spaces_reset_and_step_is_an_environment(monkeypatch):
    class Bare:
        action_space = gymnasium.spaces.Discrete(2)
        observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)

        def reset(self, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.ones(2, np.float32), 1.0, True, False, {}

    monkeypatch.setattr(making, "Bare", Bare, raising=False)
    spec = level_spec("making:Bare")
    assert action_names("making:Bare", spec.actions) == ["0", "1"]


def test_atari_takes_arguments_that_it_knows_and_leaves_others_to_gymnasium():
    pytest.importorskip("ale_py")
    known = level_spec("PongNoFrameskip-v4", env_kwargs='{"frameskip": 2}')
    assert (known.action_repeats, known.frame_stack) == (2, 4)
    other = level_spec("PongNoFrameskip-v4", env_kwargs='{"difficulty": 1}')
    assert (other.frame_stack, other.observation.shape) == (1, [210, 160, 3])
    with pytest.raises(
        BadLevel, match=r"with --env_kwargs or --env_wrap.* is not an Atari game, and st"
    ):
        level_spec("PongNoFrameskip-v4", env_kwargs='{"difficulty": 1}', sticky_actions=0.5)
    full = action_names("PongNoFrameskip-v4", level_spec("PongNoFrameskip-v4").actions)
    assert full[0] == "NOOP"


@pytest.mark.parametrize(
    ("level", "options", "sentence"),
    [
        (
            "FrozenLake-v1",
            {"env_kwargs": '{"is_slipery": false}'},
            r'FrozenLake-v1 cannot be made with --env_kwargs={"is_slipery": false}: TypeError: '
            r"FrozenLakeEnv.__init__\(\) got an unexpected keyword argument 'is_slipery'$",
        ),
        ("gym:CartPole-v1", {"env_kwargs": '{"z": 1}'}, r"gym:CartPole-v1 cannot .* argument 'z'$"),
        (
            "making:Walk",
            {"env_kwargs": '{"length": 0}'},
            r'cannot be made with --env_kwargs={"length": 0}: ValueError: a walk has a step at lea',
        ),
        (
            "making:make_walk",
            {},
            r"making:make_walk cannot be made: TypeError: make_walk\(\) missing 1 required .*"
            r"'length': pass its arguments by --env_kwargs",
        ),
        ("making:make_nothing", {}, "returned None, which is no environment: it has no methods re"),
        ("making:make_several", {}, "SyncVectorEnv.*, a vector of environments: it must return a"),
        ("making:NUMBER", {}, r"NUMBER of making is 3 \(int\), and not a function or class"),
        (
            "making:make_wolk",
            {},
            "making was imported from .* does not register make_wolk, and it has no function or "
            "class make_wolk; ",
        ),
        (
            "making:Walk",
            {"env_wrappers": "making:Time"},
            "--env_wrappers=making:Time: making has no function or class Time; did you mean making"
            ":Times?",
        ),
        (
            "making:Walk",
            {"env_wrappers": "makin:Times"},
            r"--env_wrappers=makin:Times: no module named 'makin' .*; did you mean making:Times\?",
        ),
        ("making:Walk", {"env_wrappers": "making:NUMBER"}, "NUMBER of making is 3 .* not a funct"),
        (
            "making:Walk",
            {"env_wrappers": 'making:Plus,making:Times{"fctor": 2}'},
            r'--env_wrappers: making:Times{"fctor": 2} cannot wrap making:Walk: TypeError: .*fctor',
        ),
        (
            "making:Walk",
            {"env_wrappers": "making:wrap_away"},
            "--env_wrappers: making:wrap_away returned None, which is no environment",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(level, options, sentence):
    with pytest.raises(BadLevel) as refused:
        level_spec(level, **options)
    assert re.search(sentence, str(refused.value)), str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_fault_in_a_functions_code_is_not_blamed_on_the_flags():
    with pytest.raises(NameError, match="undefined"):
        level_spec("making:make_badly")


def test_the_check_plays_the_environment_with_its_arguments_and_wrappers():
    for options, expected in (
        ({}, []),
        ({"env_wrappers": "making:Tines"}, ["making has no function or class Tines"]),
        ({"env_kwargs": '{"lenth": 1}'}, ["unexpected keyword argument 'lenth'"]),
    ):
        found = []
        check.LevelCheck("making:Walk", Options(**options), lambda *_: None, found.append).run(1e9)
        assert len(found) == len(expected)
        assert all(part in each.sentence for part, each in zip(expected, found, strict=True))


def test_an_actor_with_other_arguments_or_wrappers_is_another_ones():
    changes = {"env_kwargs": '{"length": 9}', "env_wrappers": "making:Plus"}
    plain = Config(level_name="making:Walk")
    specs = from_flags.level_specs(plain)
    options = agent.stepping_identity(plain, specs)["options"]
    for name, value in changes.items():
        changed = Config(level_name="making:Walk", **{name: value})
        assert agent.stepping_identity(changed, specs)["options"] != options
