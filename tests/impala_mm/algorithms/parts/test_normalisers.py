"""Normalised observations, images and rewards on one and several learners, beside NumPy's."""

import in_process
import in_threads
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.interface import EnvironmentNumber
from impala_mm.algorithms.parts import normalisers
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec
from impala_mm.data.variables import ParameterLayout
from impala_mm.distributed import group
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.make import make_environments

BOTH = {"normalize_observations": True, "normalize_rewards": True, "reward_clipping": "none"}
SPEC = {
    "picture": tf.TensorSpec([2, 2, 3], tf.float32),
    "speed": tf.TensorSpec([], tf.float32),
    "touch": tf.TensorSpec([3], tf.uint8),
    "camera": tf.TensorSpec([3, 2, 1], tf.uint8),
    "map": tf.TensorSpec([2, 2, 3], tf.uint8),
    "place": tf.TensorSpec([2, 2], tf.float32),
}
NORMALISING = Config(discounting=0.9, subtract_mean_image=True, **BOTH)
ALONE = GradientReducer(group.SingleLearner(), Config())


def _batch(seed, t=4, b=6, offset=0.0):
    """Return a batch with resets and the start returns.

    Column 1 is padding of weight 0 that holds NaN, and column 2 is replayed.
    """
    rng = np.random.default_rng(seed)
    observation = {
        name: (
            rng.integers(0, 255, (t + 1, b, *spec.shape)).astype(np.uint8)
            if spec.dtype == tf.uint8
            else rng.normal(offset, 1 + 5 * rng.random(), (t + 1, b, *spec.shape)).astype("f")
        )
        for name, spec in SPEC.items()
    }
    reward = rng.normal(-3, 4, (t + 1, b)).astype(np.float32)
    first = rng.random((t + 1, b)) < 0.3
    weight = np.where(np.arange(b) == 1, 0, rng.random(b) + 0.1).astype(np.float32)
    before = rng.normal(0, 10, b).astype(np.float32)
    for name in ("speed", "place"):
        observation[name][:, 1] = np.nan
    reward[first] = 0
    reward[:, 1] = np.nan
    entries = Entry(None, reward, None, None, observation, first, None, ())
    return Batch(entries, (before, ()), None, weight, None, np.arange(b) != 2)


def _columns(batch, columns):
    entries = tf.nest.map_structure(
        lambda x: None if x is None else tf.constant(x[:, columns]), batch.unrolls
    )
    start = tf.constant(batch.start[0][columns]), ()
    weight, fresh = tf.constant(batch.weight[columns]), tf.constant(batch.fresh[columns])
    return batch._replace(unrolls=entries, start=start, weight=weight, fresh=fresh)


def _reference(batches, discounting):
    """Return what has been seen, in float64: vectors [N, 5], and discounted returns [N]."""
    vectors, returns = [], []
    for batch in batches:
        entries = batch.unrolls
        for column in np.flatnonzero(batch.played):
            total = np.float64(batch.start[0][column])
            for t in range(len(entries.reward)):
                is_first = entries.first[t, column]
                reward = np.float64(entries.reward[t, column])
                total = 0.0 if is_first else discounting * total + reward
                if t == 0:
                    continue
                place, speed = (entries.observation[n][t, column] for n in ("place", "speed"))
                vectors.append(np.append(np.float64(place).ravel(), np.float64(speed)))
                if not is_first:
                    returns.append(total)
    return np.array(vectors), np.array(returns)


def _moments(normaliser):
    return [v.numpy() for v in normaliser.carried]


def _learn(batches, learners=1, config=NORMALISING):
    """Return each learner's normaliser after it has seen its columns of these batches."""

    def learn(joined):
        normaliser = normalisers.Normaliser(config, SPEC)
        exchange = GradientReducer(joined, Config())
        for batch in batches:
            mine = np.array_split(np.arange(len(batch.weight)), learners)[joined.rank]
            normaliser.update(_columns(batch, mine), 1, exchange)
        return normaliser

    return in_threads.together(learners, learn)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3),
    st.sampled_from([0.0, 1e5]),
    st.sampled_from([1, 2, 3]),
)
def test_statistics_are_those_of_numpy_over_all_that_was_seen_by_all_learners(
    seeds, offset, learners
):
    batches = [_batch(seed, offset=offset) for seed in seeds]
    vectors, returns = _reference(batches, 0.9)
    made, *others = _learn(batches, learners)
    for other in others:
        in_threads.assert_close(_moments(other), _moments(made), 0, 0)
    count, mean, variance, returns_count, _, returns_variance, pictures, *acting = _moments(made)
    shift, scale, reward_scale, camera, of_map = acting
    assert (count, returns_count) == (len(vectors), len(returns))
    np.testing.assert_allclose(mean, vectors.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(variance, vectors.var(0), rtol=1e-9)
    np.testing.assert_allclose(returns_variance, [returns.var()], rtol=1e-4)
    np.testing.assert_allclose(shift, vectors.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scale, 1 / vectors.std(0), rtol=1e-5)
    np.testing.assert_allclose(reward_scale, 1 / returns.std(), rtol=1e-4)
    assert shift.dtype == scale.dtype == reward_scale.dtype == np.float32
    assert pictures == len(vectors)
    for name, found in (("camera", camera), ("map", of_map)):
        seen = [b.unrolls.observation[name][1:, b.played] for b in batches]
        expected = np.float64(np.concatenate(seen)).mean((0, 1))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert {name: x.shape for name, x in made.mean.items()} == {n: s.shape for n, s in SPEC.items()}
    assert made.mean["camera"] is made.acting[3]
    assert not np.any(made.mean["speed"])


def test_a_mean_image_needs_images():
    config = Config(subtract_mean_image=True, reward_clipping="none")
    with pytest.raises(UserMistake, match="contain no image of bytes"):
        normalisers.Normaliser(config, tf.TensorSpec([4], tf.float32))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_batch_that_is_not_finite_enters_on_no_learner(wrong):
    """The wrong number is in a column of the second learner."""
    good, bad = _batch(1), _batch(2)
    bad.unrolls.observation["place"][3, 5, 0, 1] = wrong
    bad.unrolls.reward[2:, 5] = wrong
    bad.unrolls.first[2:, 5] = False
    config = Config(discounting=0.9, **BOTH)  # images of bytes are always finite
    expected = _moments(_learn([good], 2, config)[0])
    for each in _learn([good, bad], 2, config):
        for ours, theirs in zip(_moments(each), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_entries_are_read_normalised_and_clipped_and_integers_and_images_as_they_are():
    batch = _batch(3)
    (made,) = _learn([batch])
    entries = _columns(batch, np.array([0, 2])).unrolls
    read = made.read(entries)
    vectors, returns = _reference([batch], 0.9)
    place = np.reshape(vectors[:, :4].mean(0), [2, 2]), np.reshape(vectors[:, :4].std(0), [2, 2])
    raw = entries.observation
    np.testing.assert_allclose(
        read.observation["place"], (raw["place"] - place[0]) / place[1], rtol=1e-4, atol=1e-5
    )
    for name in ("picture", "touch", "camera"):
        np.testing.assert_array_equal(read.observation[name], raw[name])
    np.testing.assert_allclose(read.reward, entries.reward / returns.std(), rtol=1e-4)
    far = entries._replace(observation=raw | {"speed": raw["speed"] - 1e6})
    np.testing.assert_array_equal(made.read(far).observation["speed"], tf.fill([5, 2], -10.0))
    config = Config(subtract_mean_image=True, **BOTH | {"reward_clipping": "abs_one"})
    clipped = normalisers.Normaliser(config, SPEC)
    for variable, value in zip(clipped.carried, made.carried, strict=True):
        variable.assign(value)
    both = np.clip(entries.reward / returns.std(), -1, 1)
    np.testing.assert_allclose(clipped.read(entries).reward, both, rtol=1e-4)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"reward_scaling": 0.01}, [-0.2, -0.005, 0, 0.03, 9]),
        ({"max_abs_reward": 2}, [-2, -0.5, 0, 2, 2]),
        ({"max_abs_reward": 2, "reward_scaling": 10}, [-20, -5, 0, 20, 20]),
        ({"reward_scaling": 0.5, "reward_clipping": "abs_one"}, [-1, -0.25, 0, 1, 1]),
        ({"reward_scaling": 0.25, "reward_clipping": "soft_asymmetric"},
         [-1.5 * np.tanh(1), -1.5 * np.tanh(0.025), 0, 5 * np.tanh(0.15), 5]),
    ],
)  # fmt: skip
def test_rewards_are_limited_then_scaled_then_clipped(flags, expected):
    made = normalisers.Normaliser(Config(**{"reward_clipping": "none"} | flags), SPEC)
    reward = tf.constant([-20, -0.5, 0, 3, 900.0])
    read = made.read(Entry(None, reward, None, None, {}, None, None, ()))
    np.testing.assert_allclose(read.reward, expected, rtol=1e-6)
    assert made.carried == made.acting == []
    assert made.mean is None
    assert made.initial_state("state", 3) == made.join((), "state") == "state"
    assert made.split("state") == ((), "state")


def test_an_observation_that_never_changes_is_read_as_0():
    normaliser = normalisers.Normaliser(Config(**BOTH), tf.TensorSpec([2], tf.float32))
    observation = tf.fill([3, 2, 2], np.float32(1e6 + 0.3))
    zeros = tf.zeros([3, 2])
    entries = Entry(None, zeros, None, None, observation, zeros > 0, None, ())
    normaliser.update(
        Batch(entries, (zeros[0], ()), None, tf.ones([2]), None, tf.fill([2], True)), 1, ALONE
    )
    assert (normaliser.read(entries).observation.numpy() == 0).all()
    assert (normaliser.read(entries).reward.numpy() == 0).all()
    # Rewards that come late are not multiplied by a huge number.
    assert (normaliser.read(entries._replace(reward=zeros + 1.0)).reward.numpy() == 1).all()


def test_an_algorithm_trains_acts_and_publishes_with_statistics_of_both_kinds():
    """The learner's discounted returns are those that the actor kept across unrolls."""
    config = Config(level_name="Pendulum-v1", unroll_length=7, discounting=0.9, **BOTH)
    algorithm = in_process.make(config)
    player = UnrollPlayer(algorithm, [(make_environments(config.level_name, 4, seed=0), 4)])
    update = in_process.updater(algorithm, config, traced=False)
    codec, batches = UnrollCodec(algorithm.unroll), []
    for _ in range(3):
        contents = player.play()
        batches.append(in_process.decoded(codec, tf.constant(contents)))
        metrics = update(contents, over=0.0)
    assert np.isfinite(float(metrics["grad_norm"]))
    rewards = np.concatenate([b.unrolls.reward[1:] for b in batches]).astype(np.float64)
    total, returns = np.zeros(4), []
    for reward in rewards:  # Pendulum's episodes are longer than these 21 steps
        total = 0.9 * total + reward
        returns.append(total)
    normaliser = algorithm._normaliser
    scale = float(normaliser._rewards.scale)
    assert scale == pytest.approx(1 / np.std(returns), rel=1e-4)
    vectors = np.concatenate([b.unrolls.observation[1:] for b in batches], 0).reshape(-1, 3)
    offset, deviation = (v.numpy() for v in normaliser._observations.acting)
    np.testing.assert_allclose(offset, np.float64(vectors).mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(1 / deviation, np.float64(vectors).std(0), rtol=1e-4)

    variables = algorithm.variables
    layout = ParameterLayout(variables.acting, variables.trained, "float16")
    other = in_process.make(config)
    mirrored = ParameterLayout(other.variables.acting, other.variables.trained, "float16")
    mirrored.assign_bytes(layout.pack(layout.values()))
    for ours, theirs in zip(normaliser.acting, other._normaliser.acting, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_algorithm_trains_and_acts_with_the_mean_of_the_images_that_it_was_trained_on():
    level = "tests.helpers.games:PictureCatch"
    config = Config.of_algorithm("r2d2")(
        algorithm="r2d2", level_name=level, batch_size=4, unroll_length=8, burn_in=4, seed=3,
        subtract_mean_image=True, normalize_observations=False, normalize_rewards=False,
        reward_clipping="none",
    )  # fmt: skip
    algorithm = in_process.make(config)
    player = UnrollPlayer(algorithm, [(make_environments(level, 4, seed=0), 4)])
    update = in_process.updater(algorithm, config, traced=False)
    codec, overlap = UnrollCodec(algorithm.unroll), algorithm.unroll.overlap
    seen = []
    for _ in range(3):
        contents = player.play()
        batch = in_process.decoded(codec, tf.constant(contents))
        seen.append(batch.unrolls.observation[overlap:])
        update(contents, over=0.0)
    (mean,) = algorithm._normaliser.acting
    expected = np.float64(np.concatenate(seen)).mean((0, 1))
    assert expected.std() > 5
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-4)
    assert any(v is mean for v in algorithm.variables.acting)
    assert any(v is mean for v in algorithm.variables.weights)

    def act():
        tf.random.set_seed(1)
        entry = tf.nest.map_structure(lambda x: x[0], batch.unrolls)
        number = EnvironmentNumber(tf.range(4), tf.constant(4))
        _, _, extras = algorithm.act_by_number(entry, batch.start, tf.ones([4]), number)
        return tf.nest.flatten(extras)

    before = act()
    for one, same in zip(before, act(), strict=True):
        np.testing.assert_array_equal(one, same)
    mean.assign(mean + 100.0)
    assert any(np.any(np.abs(a - b) > 1e-4) for a, b in zip(before, act(), strict=True))
