"""A policy takes the observations of any space, and answers with what its environment takes."""

import acting
import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from saved_run import save

import impala_mm


def test_predict_takes_dict_observations_with_masks_one_or_many(tmp_path):
    save(tmp_path, level_name="acting:Stalls")
    policy, game = impala_mm.load_policy(tmp_path), acting.Stalls()
    seen = [game.reset(seed=seed)[0] for seed in range(3)]
    batch = tf.nest.map_structure(lambda *parts: np.stack(parts), *seen)
    one, _ = policy.predict(seen[0], deterministic=True)
    many, _ = policy.predict(batch, deterministic=True)
    assert len(many) == 3
    tf.nest.map_structure(np.testing.assert_array_equal, one, many[0])


def test_predict_takes_masks_as_the_contributed_models_do(tmp_path):
    save(tmp_path, level_name="acting:Doors")
    policy, game = impala_mm.load_policy(tmp_path), acting.Doors()
    seen, _ = game.reset(seed=1)
    only = np.eye(5, dtype=np.int8)[3]
    assert policy.predict(seen, action_masks=only)[0] == 4, "actions start at 1"
    assert list(policy.predict([seen, seen], action_masks=[only, only])[0]) == [4, 4]
    with pytest.raises(ValueError, match=r"\(action_masks for predict and for batches\)"):
        policy.predict(seen)


def test_predict_takes_the_arrays_of_a_tuple_space_one_or_many(tmp_path):
    gymnasium.register("PairOfParts-v0", entry_point=Pair)
    save(tmp_path, level_name="PairOfParts-v0")
    policy = impala_mm.load_policy(tmp_path)
    space = Pair.observation_space
    space.seed(1)
    seen = [space.sample() for _ in range(4)]
    batch = tuple(np.stack(parts) for parts in zip(*seen, strict=True))  # as vector environments
    many, _ = policy.predict(batch, deterministic=True)
    alone = [policy.predict(each, deterministic=True)[0] for each in seen]
    np.testing.assert_array_equal(many, alone)
    two, _ = policy.predict(tuple(part[:2] for part in batch), deterministic=True)
    np.testing.assert_array_equal(two, alone[:2])
    np.testing.assert_array_equal(policy.act(tuple(seen)), alone)


def test_choices_of_numbers_are_given_to_the_environment_as_numbers(tmp_path):
    flags = {"discretization": "log", "n_actions_per_dim": 3}
    save(tmp_path, level_name="Pendulum-v1", sure=True, **flags)
    policy = impala_mm.load_policy(tmp_path)
    seen = np.float32([[1, 0, 8], [-1, 0, -8], [0, 1, 0]])
    played = [policy(each) for each in seen]
    assert {tuple(each) for each in played} <= {(-2.0,), (0.0,), (2.0,)}
    assert all(each.dtype == np.float32 for each in played)
    policy.reset()
    np.testing.assert_array_equal(policy.act(seen), played)
    np.testing.assert_array_equal(policy.predict(seen, deterministic=True)[0], played)


def test_choices_of_one_number_without_an_axis_are_given_as_that_number(tmp_path):
    gymnasium.register("Scalar-v0", entry_point=Scalar)
    save(tmp_path, level_name="Scalar-v0", sure=True, discretization="lin", n_actions_per_dim=4)
    policy = impala_mm.load_policy(tmp_path)
    seen = Scalar().observation_space.sample()
    assert policy(seen).shape == ()
    policy.reset()
    assert float(policy(seen)) == pytest.approx(float(policy.act([seen], starts=[True])[0]))
    assert float(policy(seen)) in np.float32([-0.5, -1 / 6, 1 / 6, 0.5])


class Scalar(gymnasium.Env):
    """Takes one number that has no axis."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-0.5, 0.5, (), np.float32)


class Pair(gymnasium.Env):
    """Shows a vector and a number of choices."""

    observation_space = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Box(-1, 1, (2, 2))]
    )
    action_space = gymnasium.spaces.Discrete(4)


class Bits(gymnasium.Env):
    """Shows an image of zeros and ones that are no bytes."""

    observation_space = gymnasium.spaces.Box(0, 1, (40, 40, 1), np.int8)
    action_space = gymnasium.spaces.Discrete(2)


def test_images_are_read_as_training_reads_them_whatever_their_numbers(tmp_path):
    gymnasium.register("Bits-v0", entry_point=Bits)
    save(tmp_path, level_name="Bits-v0")
    policy = impala_mm.load_policy(tmp_path)
    assert policy._read(np.ones((40, 40, 1), np.int8)).max() == 255


def test_frames_of_an_emulator_that_are_no_bytes_are_refused(tmp_path):
    pytest.importorskip("ale_py")
    policy = impala_mm.load_policy("pong")
    with pytest.raises(ValueError, match="the observation has float32 numbers instead of bytes"):
        policy(np.zeros((84, 84, 1), np.float32))
