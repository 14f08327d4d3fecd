"""Observations of every space, from the environment to the arrays that a network reads."""

import json

import numpy as np
import pytest
import tensorflow as tf
from acting import Signals
from counting import Counting, level
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Text,
    Tuple,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_run import save

from impala_mm.environments import from_flags, nests
from impala_mm.environments.choices import ChoiceSpec
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.observations import read_observations
from impala_mm.environments.types import BadLevel
from impala_mm.policy.policy import load_policy

NESTED = Dict(
    view=Box(0, 255, (8, 6, 3), np.uint8),
    map=Box(0, 1, (4, 4), np.float64),
    place=Tuple([Discrete(3, start=2), MultiDiscrete([[2, 3]])]),
    doors=MultiBinary(2),
    speed=Box(-1, 1, (), np.float32),
)


def _read(space, observation, width=0, height=0):
    conversion = read_observations("here", space, width, height)
    return nests.pack(conversion.parts, conversion.read(observation))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_choices_become_one_hot_and_numbers_keep_their_values(seed):
    NESTED.seed(seed)
    given = NESTED.sample()
    read = _read(NESTED, given)
    np.testing.assert_array_equal(read["view"], given["view"])
    np.testing.assert_array_equal(read["doors"], given["doors"])
    assert read["speed"] == given["speed"]
    place, pair = given["place"]
    assert read["place"][0].tolist() == np.eye(3)[place - 2].tolist()
    one, other = pair[0]
    assert read["place"][1].tolist() == [*np.eye(2)[one], *np.eye(3)[other]]


def test_images_in_a_nest_are_resized_and_nothing_else():
    conversion = read_observations("here", NESTED, 3, 4)
    shapes = [part.shape for part in nests.flatten(conversion.parts)]
    assert shapes == [(2,), (4, 3), (3,), (5,), (), (4, 3, 3)]
    for space, seen in ((Discrete(3), r"\[3\]"), (Dict(a=Discrete(3)), r"Dict\(")):
        with pytest.raises(BadLevel, match=f"resize images, and here observes {seen}"):
            read_observations("here", space, 3, 4)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"map": np.zeros([4, 5])}, r"observation\['map'\] of shape \[4, 5\], and its space has"),
        ({"doors": None}, r"observation\['doors'\] of shape \[\]"),
        ({"place": (2,)}, r"observation\['place'\] of 1 parts, and its space has 2"),
        ({"place": (1, [[0, 0]])}, r"observation 1 is not one of 3 from 2 on"),
        ({"place": (2, [[0, 3]])}, r"is not one of \[2, 3\] from \[0, 0\] on"),
        ("map", "observation without the key 'map' of its space"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(wrong, sentence):
    NESTED.seed(0)
    seen = NESTED.sample()
    seen.update(wrong if isinstance(wrong, dict) else {})
    seen.pop(wrong if isinstance(wrong, str) else "", None)
    with pytest.raises(ValueError, match=sentence):
        _read(NESTED, seen)


class Seen(Counting):
    """An environment with nested observations, which breaks them on request."""

    observation_space = NESTED
    broken = False

    def _see(self):
        self.observation_space.seed(0)
        sample = self.observation_space.sample()
        if self.broken:
            sample["map"][0, 0] = np.nan
        return sample


def test_environments_step_with_nested_observations_and_a_nan_in_one_is_a_fault():
    envs = make_environments(level(Seen), 2, seed=0)
    first = envs.reset()
    assert first.observation["view"].shape == (2, 8, 6, 3)
    assert first.observation["place"][1].shape == (2, 5)
    assert not envs.faults
    envs._environments[1].unwrapped.broken = True
    step = envs.step(np.array([0, 0]))
    assert step.fault.tolist() == [False, True]
    assert all((part[1] == 0).all() for part in nests.flatten(step.observation))
    assert (step.observation["view"][0] != 0).any()
    assert "NaN or infinity" in envs.faults[0].text
    step = envs.step(np.array([0, 0]))
    assert step.first.tolist() == [False, True]
    assert all((part[1] != 0).any() for part in nests.flatten(step.observation))


def test_a_spec_describes_all_parts_and_checkpoints_record_them():
    spec = level_spec("acting:Signals-v0")
    assert spec.observation["light"] == tf.TensorSpec([36, 36, 1], tf.uint8)
    assert from_flags.describe_spaces(spec) == {
        "actions": "MultiDiscrete([4, 2, 3, 2])",
        "observations": "Dict(flag: float32 [4], inside: Tuple(float32 [1], float32 [5]), "
        "light: uint8 [36, 36, 1], wind: float32 [])",
    }
    assert from_flags.describe_spaces(level_spec("catch"))["observations"] == "float32 [10, 5]"


def test_a_policy_is_called_with_what_the_environment_returns(tmp_path):
    policy, environment = load_policy(save(tmp_path, level_name="acting:Signals-v0")), Signals()
    observation, _ = environment.reset(seed=1)
    for _ in range(10):
        observation, _, _, over, _ = environment.step(policy(observation, explore=True))
    assert over


def test_a_policy_is_called_with_the_number_of_a_state(tmp_path):
    policy = load_policy(save(tmp_path, level_name="Taxi-v4", sure=True))
    assert policy.spec.observation == ChoiceSpec((500,))
    for action in range(6):  # Taxi offers masks
        assert policy(17, action_mask=np.arange(6) == action) == action
    with pytest.raises(ValueError, match=r"Taxi-v4 offers masks .*, such as action_mask=info\["):
        policy(17)
    with pytest.raises(ValueError, match=r"of shape \[5\], and Discrete\(6\) has the mask \[6\]"):
        policy(17, action_mask=np.ones(5))
    every = np.ones(6, np.int8)
    actions = {policy(state, action_mask=every) for state in range(50)}
    assert len(actions) > 1, "else the state is not read"


def test_few_choices_become_one_hot_and_many_their_numbers_from_0_on():
    assert _read(Discrete(64), 63).tolist() == np.eye(64)[63].tolist()
    assert _read(Discrete(500, start=3), 3).tolist() == [0]
    many = _read(MultiDiscrete([[40, 30]], start=[[1, 0]]), np.array([[40, 29]]))
    assert (many.tolist(), many.dtype) == ([39, 29], np.int32)
    with pytest.raises(ValueError, match=r"observation \[40 30\] is not one of \[40, 30\] from"):
        _read(MultiDiscrete([40, 30]), np.array([40, 30]))
    conversion = read_observations("here", Discrete(500), 0, 0, converts=False)
    assert conversion.parts.shape == (500,)


def test_a_run_with_one_hot_states_of_an_earlier_version_is_played_as_it_was_trained(tmp_path):
    path = save(tmp_path, level_name="Taxi-v4", convert_observations=False)
    (about,) = tmp_path.rglob("about.json")
    recorded = json.loads(about.read_text())
    del recorded["settings"]["convert_observations"]
    about.write_text(json.dumps(recorded))
    policy = load_policy(path)
    assert policy.spec.observation == tf.TensorSpec([500], tf.float32)
    assert policy(17, action_mask=np.ones(6, np.int8)) in range(6)


BYTES, UNIT = {"low": 0, "high": 255, "dtype": np.uint8}, {"low": 0, "high": 1}


@pytest.mark.parametrize(
    ("space", "shape", "note"),
    [
        (Box(shape=(3, 84, 96), **BYTES), (84, 96, 3), "images [3, 84, 96] as [84, 96, 3]"),
        (Box(shape=(12, 84, 84), **BYTES), (84, 84, 12), "[12, 84, 84] as [84, 84, 12]"),
        (Box(shape=(3, 7, 7), **BYTES), (7, 7, 3), "images [3, 7, 7] as [7, 7, 3]"),
        (Box(shape=(40, 36), **BYTES), (40, 36, 1), "images [40, 36] as [40, 36, 1]"),
        (Box(shape=(36, 36, 3), **UNIT), (36, 36, 3), "numbers from 0 to 1 as bytes"),
        (Box(shape=(1, 64, 64), **UNIT), (64, 64, 1), "[64, 64, 1], numbers from 0 to 1"),
        # Ambiguous, no images, or as they should be.
        (Box(shape=(84, 84, 3), **BYTES), (84, 84, 3), ""),
        (Box(shape=(3, 7, 3), **BYTES), (3, 7, 3), ""),
        (Box(shape=(40, 84, 84), **BYTES), (40, 84, 84), ""),
        (Box(shape=(10, 5), **UNIT), (10, 5), ""),
        (Box(shape=(7, 7, 3), **UNIT), (7, 7, 3), ""),
        (Box(-1, 1, (36, 36, 3)), (36, 36, 3), ""),
        (Box(-1, 1, (3, 7, 7)), (3, 7, 7), ""),
    ],
)
def test_images_of_every_form_are_recognised(space, shape, note):
    part = read_observations("here", space, 0, 0).parts
    is_bytes = space.dtype == np.uint8 or "from 0 to 1" in note
    assert (part.shape, part.dtype) == (shape, np.uint8 if is_bytes else np.float32)
    assert note in part.note
    assert bool(note) == bool(part.note)
    space.seed(0)
    image = space.sample()
    read = np.zeros(part.shape, part.dtype)
    read[:] = part.read(image, "")
    channels_first = shape[:2] == space.shape[1:]
    as_given = np.moveaxis(read, -1, 0) if channels_first else read.reshape(space.shape)
    expected = np.rint(np.float64(image) * 255) if "from 0 to 1" in note else image
    np.testing.assert_allclose(as_given, expected, atol=1e-6)
    plain = read_observations("here", space, 0, 0, converts=False).parts
    assert (plain.shape, plain.note) == (space.shape, "")


def _seen(image, width, height, **of):
    space = Box(0, shape=image.shape, **{"high": 255, "dtype": np.uint8} | of)
    return read_observations("here", space, width, height).read(image)[0]


def test_images_are_resized_by_area():
    grey = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    means = grey.reshape(2, 4, 2, 4).mean((1, 3))
    np.testing.assert_allclose(_seen(grey, 2, 2), means, atol=0.51)
    assert _seen(grey, 2, 0).shape == (8, 2)
    assert _seen(grey, 0, 16).shape == (16, 8)
    assert _seen(grey[..., None], 1, 1).shape == (1, 1, 1)
    deep = _seen(np.full((8, 8, 6), 0.5), 3, 5, high=1, dtype=np.float64)
    np.testing.assert_allclose(deep, np.full((5, 3, 6), 0.5))
    assert deep.dtype == np.float32
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    first = _seen(np.moveaxis(image, -1, 0), 40, 30)  # its channels are first
    np.testing.assert_array_equal(first, _seen(image, 40, 30))


def test_a_nan_in_an_image_of_numbers_is_an_error():
    image = np.zeros([36, 36, 3])
    image[0, 1, 2] = np.nan
    with pytest.raises(ValueError, match="observation with NaN or infinity"):
        _read(Box(shape=(36, 36, 3), **UNIT), image)


@pytest.mark.parametrize("number", [np.nan, -1.0, 256, 1e300])
def test_numbers_that_no_byte_holds_are_refused_where_the_space_is_of_bytes(number):
    conversion = read_observations("level", Box(0, 255, (2,), np.uint8), 0, 0)
    for fits in (np.array([3.0, 255.0]), [3, 255], np.array([3, 0, 255])[::2]):
        np.testing.assert_array_equal(conversion.read(fits)[0].astype(np.uint8), [3, 255])
    with pytest.raises(ValueError, match=r"no byte holds"):
        conversion.read(np.array([3, number]))


def test_what_was_recognised_is_a_note_to_the_user():
    class Camera(Counting):
        observation_space = Dict(left=Box(shape=(3, 40, 40), **BYTES), rest=Box(-1, 1, (2,)))

    name = level(Camera)
    assert "is read as images: images [3, 40, 40] as [40, 40, 3]" in level_spec(name).note
    assert level_spec(name, convert_observations=False).note == ""


class Missions(Space):
    """A space of another package, as MiniGrid's missions are."""

    def __init__(self):
        super().__init__(dtype=str)


@pytest.mark.parametrize("space", [Text(99), Missions()])
def test_a_text_becomes_numbers_of_its_words_in_their_order(space):
    (part,) = read_observations("here", space, 0, 0).leaves
    assert part.shape == (len(part.choices),)
    vocabulary = [f"word{i}" for i in range(60)]
    read = {word: tuple(_read(space, word)) for word in [*vocabulary, "", "Größe", "a b", "b a"]}
    assert len(set(read.values())) == len(read)
    assert all(0 <= number < 32 for numbers in read.values() for number in numbers)
    assert np.array_equal(_read(space, "go LEFT"), _read(space, np.str_(" Go  left ")))
    assert not any(read[""])
    long = "go " * 23
    same = _read(space, f"{long} left and back")
    assert same.tolist() == _read(space, f"{long} left").tolist() != _read(space, long).tolist()
    assert (part.read("go", "")[:3] == [6, 19, 11]).all(), "else old checkpoints read other words"
    with pytest.raises(ValueError, match="observation 7 is no text, and its space has texts"):
        _read(space, 7)


def test_texts_are_read_by_environments_networks_and_policies(tmp_path):
    spec = level_spec("acting:Tales-v0")
    seen = from_flags.describe_spaces(spec)["observations"]
    assert seen == "Dict(hour: float32 [3], tale: 24 words)"
    envs = make_environments("acting:Tales-v0", 8, seed=0)
    assert len(np.unique(envs.reset().observation["tale"], axis=0)) > 3
    policy = load_policy(save(tmp_path, level_name="acting:Tales-v0"))
    assert policy({"tale": "the cat bites the dog", "hour": 0}) in range(4)
