"""PopArt: values stay what they were, outputs become normalised, and all learners agree."""

import in_threads
import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts import value_units
from impala_mm.config.settings import Config
from impala_mm.distributed import group
from impala_mm.distributed.gradients import GradientReducer

ALONE = GradientReducer(group.SingleLearner(), Config())
FEATURES = np.random.default_rng(0).normal(0, 1, (50, 8)).astype(np.float32)


def made():
    """Return a value head with random weights, and its unit."""
    tf.random.set_seed(1)
    head = snt.Linear(1)
    head(FEATURES)
    head.b.assign([0.3])
    return head, value_units.make_unit("popart", head)


def see(unit, targets, live=None, exchange=ALONE):
    targets = tf.cast(targets, tf.float32)
    unit.see_targets(targets, tf.ones_like(targets) > 0 if live is None else live, exchange)


def in_graph(unit):
    """Return a function like `see`, which is faster if it is called often."""
    signature = [tf.TensorSpec([None, None])]
    return tf.function(lambda targets: see(unit, targets), signature, autograph=False)


def known(unit):
    """Return (mean, deviation) that values are made with."""
    return [float(v) for v in unit.acting]


SCALES = st.tuples(
    st.sampled_from([0.0, 1.0, -300.0, 1e6, -1e9]),  # mean of the targets
    st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e4, 1e9]),  # and their deviation
    st.integers(1, 300),  # their number
)


@pytest.fixture(scope="module")
def anew():
    """Return a function that returns a head and its unit as `made`, and `see` as one graph."""
    head, unit = made()
    variables = [head.w, head.b, *unit.learning, *unit.acting]
    initial, learn = [v.numpy() for v in variables], in_graph(unit)

    def begin():
        for variable, value in zip(variables, initial, strict=True):
            variable.assign(value)
        return head, unit, learn

    return begin


@settings(max_examples=15, deadline=None)
@given(st.lists(SCALES, min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_a_rescale_leaves_all_values_unchanged_to_1e4_of_their_unit(anew, batches, seed):
    """However far the new targets are from all before; the unit is the larger deviation."""
    rng, (head, unit, learn) = np.random.default_rng(seed), anew()
    for mean, deviation, count in batches:
        before = np.float64(unit.values(head(FEATURES)))
        units = [known(unit)[1]]
        learn(np.float32(mean + deviation * rng.standard_normal((count, 1))))
        after = np.float64(unit.values(head(FEATURES)))
        units.append(known(unit)[1])
        # Numbers of this size are no more exact than that in float32, however they are made.
        size = 1e-6 * np.abs(before).max()
        assert np.abs(after - before).max() <= max(1e-4 * max(units), size)


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (-70, 3e5), (1e7, 1e6), (0.02, 0.003)])
def test_mean_and_deviation_are_those_of_the_targets_where_live(mean, deviation):
    _, unit = made()
    rng, seen = np.random.default_rng(3), []
    for _ in range(7):
        targets, live = rng.normal(mean, deviation, (20, 6)), rng.random((20, 6)) < 0.6
        targets = targets.astype(np.float32)
        seen.append(np.float64(targets[live]))
        targets[~live] = np.nan
        see(unit, targets, tf.constant(live))
    seen = np.concatenate(seen)
    np.testing.assert_allclose(known(unit), [seen.mean(), seen.std()], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(unit.squared(), seen.var(), rtol=1e-5)
    np.testing.assert_allclose(unit.scale_advantages(tf.ones([])), 1 / seen.std(), rtol=1e-5)


def test_they_follow_the_newest_targets():
    """After many times the memory of new targets, the old ones no longer count."""
    _, unit = made()
    rng = np.random.default_rng(4)
    see(unit, rng.normal(1e6, 10, (500, 100)))
    for _ in range(20):
        see(unit, rng.normal(-5, 2, (500, 100)))
    np.testing.assert_allclose(known(unit), [-5, 2], rtol=0.02)
    see(unit, rng.normal(40, 3, (1000, 100)))  # more than the memory in a single batch
    np.testing.assert_allclose(known(unit), [40, 3], rtol=0.02)


def test_targets_that_hardly_differ_are_not_magnified():
    _, unit = made()
    see(unit, np.zeros([5, 4]))
    assert known(unit) == [0, np.float32(value_units.LEAST)]
    see(unit, np.full([5, 40], 9000.0))
    mean, deviation = known(unit)
    assert deviation >= value_units.LEAST_SHARE * mean * 0.999


def test_a_first_batch_without_live_transitions_changes_nothing():
    head, unit = made()
    before = in_threads.arrays(head.w, head.b)
    see(unit, np.full([2, 2], 7.0), tf.zeros([2, 2], tf.bool))
    assert known(unit) == [0, 1]
    in_threads.assert_close(before, in_threads.arrays(head.w, head.b), 0, 0)


@pytest.mark.parametrize("wrong", [np.nan, None])
def test_targets_that_are_not_finite_on_one_learner_or_not_live_change_nothing_on_any(wrong):
    heads = [made(), made()]

    def learn(joined):
        (head, unit), targets = heads[joined.rank], np.ones([2, 3])
        exchange = GradientReducer(joined, Config())
        see(unit, targets, exchange=exchange)
        variables = (head.w, head.b), unit.learning, unit.acting
        kept, targets[1, 1] = in_threads.arrays(*variables), 2.0
        if wrong is None:
            see(unit, targets, tf.zeros([2, 3], tf.bool), exchange)
        else:
            targets[1, 1] = wrong if joined.rank else 2.0
            see(unit, targets, exchange=exchange)
        return kept, in_threads.arrays(*variables)

    for kept, after in in_threads.together(2, learn):
        in_threads.assert_close(kept, after, 0, 0)


def test_learners_hold_the_bits_of_each_other_and_the_moments_of_one_with_all_targets():
    rng = np.random.default_rng(5)
    batches = rng.normal(1e5, rng.uniform(1, 1e4, (4, 1, 1)), (4, 10, 6))
    heads = {(size, rank): made() for size in (1, 3) for rank in range(size)}

    def learn(joined):
        head, unit = heads[joined.size, joined.rank]
        exchange = GradientReducer(joined, Config())
        for batch in batches:
            see(unit, batch[:, in_threads.share_of(joined, 6)], exchange=exchange)
        return in_threads.arrays((head.w, head.b), unit.learning, unit.acting)

    first, *others = in_threads.together(3, learn)
    for each in others:
        in_threads.assert_close(each, first, 0, 0)
    in_threads.assert_close(first, in_threads.together(1, learn)[0], 1e-6, 0)


def test_each_level_has_a_mean_and_a_deviation_of_its_own_and_keeps_its_values():
    """Three levels, of which one has not been played yet; the columns of a batch mix them."""
    head = snt.Linear(3)
    head(FEATURES)
    unit, rng = value_units.make_unit("popart", head), np.random.default_rng(6)
    level, seen = tf.constant([0, 1, 1, 0, 1]), {0: [], 1: []}

    def values():
        return [unit.values(head(FEATURES), tf.fill([50], i)).numpy() for i in range(3)]

    for _ in range(5):
        of_level = np.array([[5.0, 2.0], [-4e4, 3e3]])[level.numpy()]  # mean and deviation, [B, 2]
        targets = np.float32(rng.normal(*of_level.T, (20, 5)))
        live = rng.random((20, 5)) < 0.7
        for i in (0, 1):
            seen[i].append(np.float64(targets[live & (level.numpy() == i)]))
        targets[~live] = np.nan
        before = values()
        unit.see_targets(tf.constant(targets), tf.constant(live), ALONE, level)
        for i, (one, other) in enumerate(zip(before, values(), strict=True)):
            tolerance = 1e-4 * max(1.0, float(unit.acting[1][i]), np.abs(one).max())
            np.testing.assert_allclose(other, one, rtol=0, atol=tolerance)
    mean, deviation = (variable.numpy() for variable in unit.acting)
    for i in (0, 1):
        of_level = np.concatenate(seen[i])
        np.testing.assert_allclose(mean[i], of_level.mean(), rtol=1e-5)
        np.testing.assert_allclose(deviation[i], of_level.std(), rtol=1e-5)
    assert (mean[2], deviation[2]) == (0, 1)
    squared = unit.squared(level)
    np.testing.assert_allclose(squared, deviation[level.numpy()] ** 2, rtol=1e-6)
    scaled = unit.scale_advantages(tf.ones([20, 5]), level)
    np.testing.assert_allclose(scaled[3], 1 / deviation[level.numpy()], rtol=1e-6)
    cost = value_units.cost(0.5, squared, tf.ones([20, 5]), tf.reduce_sum)
    np.testing.assert_allclose(cost, 10 * np.sum(1 / squared.numpy()), rtol=1e-6)
