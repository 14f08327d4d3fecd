"""Environments are made with arguments, by functions and classes, and are wrapped."""

import gymnasium
import making
import numpy as np
import pytest

from impala_mm.algorithms import agent
from impala_mm.config.settings import Config
from impala_mm.environments import from_flags
from impala_mm.environments.make import action_names, level_spec, make_environments
from impala_mm.environments.types import BadLevel


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


@pytest.mark.parametrize(
    ("options", "rewards", "cut"),
    [
        ({"env_wrappers": "making:Times,making:Plus"}, 11, False),
        ({"env_wrappers": "making:Plus,making:Times"}, 20, False),
        ({"env_wrappers": 'making:Plus,making:Times{"factor": 3}'}, 6, False),
        ({"env_wrappers": 'gymnasium.wrappers:TimeLimit{"max_episode_steps": 1}'}, 1, True),
        ({"env_kwargs": '{"max_episode_steps": 1}'}, 1, True),
    ],
)
def test_wrappers_are_around_the_environment_the_last_one_outermost(options, rewards, cut):
    played = make_environments("making:Walk-v0", 1, 0, **options)
    played.reset()
    step = played.step(np.ones(1, np.int32))
    assert (step.reward[0], step.truncated[0]) == (rewards, cut)


def test_functions_with_a_render_mode_make_pictures_registered_or_not():
    gymnasium.register("Drawn-v0", entry_point=making.make_walk)
    gymnasium.register("DrawnByName-v0", entry_point="making:make_walk")
    for name in ("making:make_walk", "Drawn-v0", "DrawnByName-v0"):
        played = make_environments(name, 2, 0, True, env_kwargs='{"length": 3}')
        played.reset()
        assert played.picture().shape == (8, 8, 3)
        assert played.picture_rate == 10


@pytest.mark.parametrize("name", ["OnlyShown", "WithoutArgument"])
def test_a_class_that_takes_no_render_mode_for_pictures_is_made_without_it(name):
    played = make_environments(f"making:{name}", 1, 0, True)
    assert not played.reset().fault.any()
    with pytest.raises(BadLevel, match="draws no pictures"):
        played.picture()


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


def test_atari_takes_arguments_that_it_knows_and_leaves_others_to_gymnasium():
    pytest.importorskip("ale_py")
    known = level_spec("PongNoFrameskip-v4", env_kwargs='{"frameskip": 2}')
    assert (known.action_repeats, known.frame_stack) == (2, 4)
    difficult = {"env_kwargs": '{"difficulty": 1}'}
    other = level_spec("PongNoFrameskip-v4", **difficult)
    assert (other.frame_stack, other.observation.shape) == (1, [210, 160, 3])
    with pytest.raises(BadLevel, match=r"with --env_kwargs or --env_wrap.* is not an Atari game"):
        level_spec("PongNoFrameskip-v4", **difficult, sticky_actions=0.5)
    assert action_names("PongNoFrameskip-v4", known.actions)[0] == "NOOP"


KWARGS, WRAPPERS = "env_kwargs", "env_wrappers"


@pytest.mark.parametrize(
    ("level", "flag", "given", "sentence"),
    [
        ("FrozenLake-v1", KWARGS, '{"is_slipery": 0}', '={"is_slipery": 0}: TypeError: FrozenLake'),
        ("gym:CartPole-v1", KWARGS, '{"z": 1}', "unexpected keyword argument 'z'"),
        ("making:Walk", KWARGS, '{"length": 0}', "ValueError: a walk has a step at least"),
        ("making:make_walk", KWARGS, "", "'length': pass its arguments by --env_kwargs"),
        ("making:make_nothing", KWARGS, "", "returned None, which is no environment"),
        ("making:make_several", KWARGS, "", "a vector of environments"),
        ("making:NUMBER", KWARGS, "", "NUMBER of making is 3 (int), and not a function or class"),
        ("making:make_wolk", KWARGS, "", "does not register make_wolk, and it has no function"),
        ("making:Walk", WRAPPERS, "making:Time", "; did you mean making:Times?"),
        ("making:Walk", WRAPPERS, "makin:Times", "no module named 'makin'"),
        ("making:Walk", WRAPPERS, "making:NUMBER", "NUMBER of making is 3"),
        ("making:Walk", WRAPPERS, 'making:Times{"fctor": 2}', 'Times{"fctor": 2} cannot wrap'),
        ("making:Walk", WRAPPERS, "making:wrap_away", "wrap_away returned None"),
    ],
)
def test_what_does_not_fit_is_one_sentence(level, flag, given, sentence):
    with pytest.raises(BadLevel) as refused:
        level_spec(level, **{flag: given})
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert level in str(refused.value) or f"--{flag}" in str(refused.value)


def test_a_fault_in_a_functions_code_is_not_blamed_on_the_flags():
    with pytest.raises(NameError, match="undefined"):
        level_spec("making:make_badly")


def test_an_object_with_nothing_but_spaces_reset_and_step_is_an_environment(monkeypatch):
    class Bare:
        action_space = gymnasium.spaces.Discrete(2)
        observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        reset = step = lambda self: None

    monkeypatch.setattr(making, "Bare", Bare, raising=False)
    assert action_names("making:Bare", level_spec("making:Bare").actions) == ["0", "1"]


def test_an_actor_with_other_arguments_or_wrappers_is_another_ones():
    changes = {"env_kwargs": '{"length": 9}', "env_wrappers": "making:Plus"}
    plain = Config(level_name="making:Walk")
    specs = from_flags.level_specs(plain)
    shared = agent.stepping_identity(plain, specs)["shared"]
    for name, value in changes.items():
        changed = Config(level_name="making:Walk", **{name: value})
        other = agent.stepping_identity(changed, specs)["shared"]
        assert [words for words in shared if other[words] != shared[words]] == [
            "environment's options"
        ]
