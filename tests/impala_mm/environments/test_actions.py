"""Actions of all spaces: what the environment gets, what the network reads, how they are called."""

from types import SimpleNamespace

import gym
import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from counting import Counting, level
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_run import save

from impala_mm.environments import action_parts, from_flags, gym_adapter
from impala_mm.environments.actions import UnsuitableActions
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.spaces import read_actions
from impala_mm.policy.policy import load_policy


def spec_of(space):
    return read_actions("here", SimpleNamespace(action_space=space))


NESTED = Dict(
    move=Box(np.float32([-2, 0]), np.float32([2, 1])),
    look=Tuple([Discrete(3, start=-1), MultiDiscrete([[2, 3], [1, 4]])]),
    press=MultiBinary(2),
)
SPACES = [
    Discrete(3, start=-1),
    MultiDiscrete([2, 2], start=[5, -1]),
    MultiBinary([2, 2]),
    Box(-2, 2, (1,)),
    Box(0, 255, (2,), np.uint8),
    Box(-5, 5, (), np.int64),
    Box(-np.inf, np.inf, (2,)),
    Box(np.float64([-1, 0, -np.inf]), np.float64([3, np.inf, np.inf]), dtype=np.float64),
    Box(-3.4e38, 3.4e38, (2,)),
    NESTED,
]


@settings(max_examples=60, deadline=None)
@given(
    space=st.sampled_from(SPACES),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.5, 1.0, 1e4]),
)
def test_whatever_a_policy_chooses_is_in_the_environments_space(space, seed, spread):
    rng, spec = np.random.default_rng(seed), spec_of(space)

    def chosen(part):
        if isinstance(part, action_parts.Discrete):
            return rng.integers(part.n, size=4).astype(np.int32)
        if isinstance(part, action_parts.MultiDiscrete):
            return rng.integers(np.reshape(part.n, part.shape), size=(4, *part.shape), dtype="i4")
        if isinstance(part, action_parts.MultiBinary):
            return rng.integers(2, size=(4, *part.shape), dtype=np.int32)
        return rng.normal(0, spread, (4, *part.shape)).astype(np.float32)

    taken = spec.to_environments(spec.pack([chosen(part) for part in spec.leaves]))
    assert len(taken) == 4
    assert all(space.contains(action) for action in taken), taken  # each part has its type


def test_a_bounded_box_is_rescaled_and_every_bound_can_be_reached():
    spec = spec_of(Box(np.float32([-2, 0.1]), np.float32([2, 0.3])))
    numbers = np.float32([[-1, -1], [0, 0], [1, 1]])
    taken = spec.to_environments(numbers)
    np.testing.assert_array_equal(taken, np.float32([[-2, 0.1], [0, 0.2], [2, 0.3]]))
    np.testing.assert_allclose(spec.in_environment_units(tf.constant(numbers)), taken)
    np.testing.assert_allclose(spec.from_environment_units(tf.constant(taken)), numbers, atol=1e-6)
    bytes_, asked = spec_of(Box(0, 255, (1,), np.uint8)), np.float32([[-1], [0.6 / 127.5 - 1], [1]])
    for found in (bytes_.to_environments(asked), bytes_.in_environment_units(tf.constant(asked))):
        np.testing.assert_array_equal(found, [[0], [1], [255]])
    endless, asked = spec_of(Box(np.float32([0, -np.inf]), np.inf)), np.float32([[-3, -3], [9, 9]])
    np.testing.assert_array_equal(endless.to_environments(asked), [[0, -3], [9, 9]])
    bounds = [ends.tolist() for ends in endless.parts.policy_bounds]
    assert bounds == [[0, -np.inf], [np.inf, np.inf]]


def test_the_network_reads_choices_as_one_hot_and_numbers_as_they_are():
    spec = spec_of(NESTED)
    action = {
        "look": (np.int32([2, 1]), np.int32([[[1, 2], [0, 3]], [[0, 0], [0, 0]]])),
        "move": np.float32([[0.5, -1], [1, 1]]),
        "press": np.int32([[1, 0], [1, 1]]),
    }
    read = spec.features(tf.nest.map_structure(tf.constant, action), tf.constant([False, True]))
    look = [0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1]
    assert read.numpy().tolist() == [[*look, 0.5, -1, 1, 0], [0] * 17], "zeros where first is true"
    assert spec.num_features == 17


def test_the_network_reads_numbers_beyond_the_bounds_as_the_bounds():
    spec = spec_of(Dict(a=Box(-2, 2, (2,)), b=Box(np.float32([0, -np.inf]), np.inf)))
    action = {"a": tf.constant([[-7, 0.5]]), "b": tf.constant([[-3, -1e9]])}
    assert spec.features(action, tf.constant([False])).numpy().tolist() == [[-1, 0.5, 0, -1e9]]


@pytest.mark.parametrize(
    ("space", "described"),
    [
        (Discrete(5, start=2), 5),
        (MultiDiscrete([[2], [3]]), "MultiDiscrete([[2], [3]])"),
        (MultiBinary(3), "MultiBinary([3])"),
        (Box(-2, 2, (1,)), "Box([1], -2 to 2)"),
        (Box(np.float32([0, 1]), np.float32([3, 3])), "Box([2], [0.0, 1.0] to 3)"),
        (Dict(b=Discrete(2), a=Tuple([MultiBinary(1)])), "Dict(a: Tuple(MultiBinary([1])), b: "),
    ],
)
def test_checkpoints_and_messages_call_them_by_their_space(space, described):
    assert str(spec_of(space).describe()).startswith(str(described))
    assert from_flags.in_words(5) == "5 actions"
    assert from_flags.in_words("Box([1], -2 to 2)") == "actions Box([1], -2 to 2)"


def test_an_algorithm_for_discrete_actions_refuses_others_in_a_sentence():
    assert level_spec("catch").num_actions == 3
    with pytest.raises(UnsuitableActions, match="only Discrete actions, and Pendulum-v1 takes Box"):
        _ = level_spec("Pendulum-v1").num_actions


class Told(Counting):
    """An environment that keeps the actions that it is given."""

    action_space = NESTED

    def step(self, action):
        assert self.action_space.contains(action), action
        self.told = action
        return super().step(0)


@pytest.mark.parametrize("repeats", [1, 2])
def test_environments_step_by_nested_actions(repeats):
    envs = make_environments(level(Told), 2, seed=0, num_action_repeats=repeats)
    envs.reset()
    nest = envs.spec.actions.zeros(2)
    nest["move"][1] = [1, -1]
    envs.step(nest)
    told = [env.unwrapped.told for env in envs._environments]
    assert [each["move"].tolist() for each in told] == [[0, 0.5], [2, 0]]
    assert told[1]["look"][0] == -1
    assert (told[1]["look"][0].dtype, told[1]["press"].dtype) == (np.int64, np.int8)
    assert not envs.faults


def test_spaces_of_classic_gym_become_those_of_gymnasium():
    def space(of):
        return of.Dict(
            a=of.Tuple([of.Discrete(3, start=1), of.MultiDiscrete([2, 3])]),
            b=of.MultiBinary(2),
            c=of.Box(-1, 1, (2,), np.float32),
        )

    assert gym_adapter._as_gymnasium_space(space(gym.spaces)) == space(gymnasium.spaces)
    assert make_environments("gym:Pendulum-v1", 1, seed=0).spec.actions == spec_of(Box(-2, 2, (1,)))


@pytest.mark.parametrize(("space", "kind"), [(NESTED, dict), (Discrete(3, start=5), int)])
def test_a_policy_returns_what_the_environments_step_takes(tmp_path, space, kind):
    class Own(Counting):
        action_space = space

    policy = load_policy(save(tmp_path, level_name=level(Own)))
    for explore in (False, True):
        action = policy(np.zeros(1), explore=explore)
        assert isinstance(action, kind)
        assert space.contains(action), action
