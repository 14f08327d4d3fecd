"""Names of levels that work, and the errors for those that do not."""

import sys
from pathlib import Path

import gym
import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from counting import Counting, level
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence, Text, Tuple

from impala_mm.environments import action_parts
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import action_names, level_spec, make_environments
from impala_mm.environments.types import BadLevel, EnvironmentSpec

WITHOUT_GOALS = (
    "its observations are no Dict with the keys observation, achieved_goal, desired_goal"
)


@pytest.mark.parametrize(
    ("name", "shape", "choices", "threshold"),
    [
        ("CartPole-v1", [4], 2, 475.0),
        ("Catch", [10, 5], 3, 0.9),
        ("impala_mm/Memory-v0", [4], 2, 0.95),
        ("sandbox.own_environment:Corridor-v0", [1], 2, 0.85),
        ("gym:CartPole-v1", [4], 2, 475.0),
        ("gym:counting:CartPole-v0", [4], 2, 195.0),
    ],
)
def test_ids_that_are_known(name, shape, choices, threshold):
    spec = level_spec(name)
    assert spec == EnvironmentSpec(
        *(name, tf.TensorSpec(shape, tf.float32), ActionSpec(action_parts.Discrete(choices)), 1),
        *(threshold, 1, ""),
        without_goals=WITHOUT_GOALS,
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sticky_actions": 0.25}, "works only with Atari games: give --sticky_actions=-1"),
        ({"no_reward_steps": 9, "full_action_space": True}, "full_action_space and no_reward_ste"),
        ({"life_loss_ends": False, "max_frames": 9}, "and max_frames works"),
    ],
)
def test_atari_options_are_refused_elsewhere(options, sentence):
    with pytest.raises(BadLevel, match=f"catch is not an Atari game, .*{sentence}"):
        level_spec("catch", **options)
    assert level_spec("catch", life_loss_ends=False).num_actions == 3


MODULE = """
import gym
class Mine(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}
gym.register("GymMine-v0", entry_point=Mine, reward_threshold=1.5)
"""


def test_a_module_of_ones_own_registers_its_environment_of_classic_gym(tmp_path, monkeypatch):
    (tmp_path / "my_gym_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert level_spec("my_gym_package:GymMine-v0").reward_threshold == 1.5
    assert level_spec("GymMine-v0").num_actions == 2, "gym's ids need no prefix"
    assert "GymMine-v0" not in gymnasium.registry
    envs = make_environments("my_gym_package:GymMine-v0", 1, seed=0)
    envs.reset()
    assert envs.step(np.array([1])).terminated.all()
    with pytest.raises(BadLevel, match="did you mean my_gym_package:GymMine-v0"):
        level_spec("my_gym_package:GymMines-v0")


class OldEnv:
    """Has the API of before gym 0.26: it begins at its seed, and a time limit cuts it at 4."""

    metadata = None  # as in crafter

    def seed(self, seed=None):
        self._place = seed

    def reset(self):
        return self._place

    def step(self, action):
        self._place += 1
        cut = {"TimeLimit.truncated": True} if self._place == 4 else {}
        return self._place, 1.0, bool(cut), cut


class OldClassic(OldEnv, gym.Env):
    observation_space = gym.spaces.Discrete(5)
    action_space = gym.spaces.Discrete(2)


class OldGymnasium(OldEnv, gymnasium.Env):
    observation_space = Discrete(5)
    action_space = Discrete(2)


class OldStep(OldGymnasium):
    def reset(self, *, seed=None, options=None):
        self.seed(seed)
        return seed, {}


class ModernClassic(OldClassic):
    def reset(self, *, seed=None, options=None):
        self.seed(seed)
        return seed

    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward, False, done, info


gym.register("OldClassic-v0", entry_point=OldClassic)
gymnasium.register("OldGymnasiumWithLimit-v0", entry_point=OldGymnasium, max_episode_steps=99)


@pytest.mark.parametrize(
    ("name", "repeats"),
    [
        *(("OldClassic-v0", 1), ("OldGymnasiumWithLimit-v0", 2), (f"{__name__}:OldGymnasium", 1)),
        *((f"{__name__}:OldStep", 1), (f"{__name__}:OldStep", 2)),
        *((f"{__name__}:ModernClassic", 1), (f"{__name__}:OldClassic", 2)),
    ],
)
def test_environments_of_classic_gym_or_an_old_api_play_registered_or_not(name, repeats):
    envs = make_environments(name, 1, seed=0, num_action_repeats=repeats)
    assert envs.reset().observation.tolist() == [[1, 0, 0, 0, 0]]
    for _ in range(4 // repeats):
        step = envs.step(np.array([0]))
    assert envs.faults == []
    assert step.observation.tolist() == [[0, 0, 0, 0, 1]]
    assert (step.reward[0], step.truncated[0], step.terminated[0]) == (repeats, True, False)


def test_an_old_environment_without_a_seed_plays_and_its_wrappers_find_its_methods(monkeypatch):
    class Unseeded(OldClassic):
        seed = property()  # as if it had none

        def reset(self):
            self._place = 0
            return 0

        def action_masks(self):
            return [True, False]

        def get_action_meanings(self):
            return ["stay", "go"]

    monkeypatch.setattr(sys.modules[__name__], "Unseeded", Unseeded, raising=False)
    name = f"{__name__}:Unseeded"
    wrapper = 'gymnasium.wrappers:TimeLimit{"max_episode_steps": 2}'
    envs = make_environments(name, 1, seed=2, env_wrappers=wrapper)
    assert envs.reset().observation.tolist() == [[1, 0, 0, 0, 0]]
    envs.step(np.array([0]))
    step = envs.step(np.array([0]))
    assert step.truncated[0]
    assert step.mask.tolist() == [[True, False]]
    assert envs.faults == []
    assert action_names(name, envs.spec.actions) == ["stay", "go"]


def test_an_observation_of_a_tuple_is_not_taken_for_an_info():
    class Pair(OldClassic):
        observation_space = gym.spaces.Tuple(
            [gym.spaces.Discrete(3), gym.spaces.Dict(x=gym.spaces.Discrete(2))]
        )

        def reset(self):
            return 1, {"x": 1}

    envs = make_environments(level(Pair), 1, seed=2)
    number, inner = envs.reset().observation
    assert (number.tolist(), inner["x"].tolist()) == ([[0, 1, 0]], [[0, 1]])


def test_a_fault_of_an_old_environment_names_its_method():
    class Wrong(OldGymnasium):
        def step(self, action):
            return np.zeros(3), 0.0, False, {}

    envs = make_environments(level(Wrong), 1, seed=0)
    envs.reset()
    envs.step(np.array([0]))
    (fault,) = envs.faults
    assert Path(__file__).name in fault.traceback
    assert "in step" in fault.traceback


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("CartPol-v1", "there is no environment CartPol-v1; did you mean CartPole-v1 or"),
        ("ALE/Pnog-v5", "did you mean ALE/Pong-v5"),
        ("Breakout-v5", "did you mean ALE/Breakout-v5"),
        ("cach", "did you mean catch?"),
        ("gym:CartPol-v1", "did you mean gym:CartPole-v1 or gym:CartPole-v0"),
        ("counting:Countin-v0", "did you mean counting:Counting-v0"),
        ("xyzzy", "there is no environment xyzzy; a level is the id of a gymnasium or gym"),
        ("", "a level is the id of"),
        ("my_packge:MyEnv-v0", "no module named 'my_packge' was found in "),
    ],
)
def test_a_name_that_does_not_work_is_answered_in_one_sentence(name, sentence):
    with pytest.raises(BadLevel) as refused:
        make_environments(name, 1, seed=0)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("library", [gymnasium, gym])
def test_an_environment_that_lacks_a_package_says_which(library):
    def lacks_one():
        raise library.error.DependencyNotInstalled("Box2D is missing:\npip install Box2D")

    name = f"{library.__name__}Lacking-v0"
    library.register(name, entry_point=lacks_one)
    with pytest.raises(BadLevel, match=f"^{name} cannot be made: Box2D is missing: pip install"):
        make_environments(name, 1, seed=0)


ACTIONS, SEEN = "action_space", "observation_space"


@pytest.mark.parametrize(
    ("which", "space", "sentence"),
    [
        (ACTIONS, Text(5), "takes actions from Text.*: only Discrete, MultiDiscrete"),
        (ACTIONS, Dict(a=Discrete(2), b=Sequence(Discrete(2))), ", with Sequence.* in it: "),
        (ACTIONS, Tuple([]), "takes actions from Tuple"),
        (SEEN, Dict(a=Discrete(2), b=Tuple([])), "Tuple.* in it: .*FilterObservation"),
        (SEEN, Graph(Box(0, 1, (2,)), None), "is a graph: make a Box of its nodes"),
        (SEEN, Tuple([Sequence(Discrete(2))]), "a sequence of any length: fill it"),
        (SEEN, Dict(), "only Box observations of numbers, Discrete, MultiDiscrete"),
    ],
)
def test_unsupported_spaces_are_refused_and_the_environment_closed(which, space, sentence):
    closed = []

    class Odd(Counting):
        def __init__(self):
            super().__init__()
            setattr(self, which, space)

        def close(self):
            closed.append(self)
            raise RuntimeError("the simulator is gone")

    name = level(Odd)
    with pytest.raises(BadLevel, match=f"^{name} .*{sentence}"):
        level_spec(name)
    assert len(closed) == 1
