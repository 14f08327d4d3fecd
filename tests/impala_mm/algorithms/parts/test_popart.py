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


@settings(max_examples=30, deadline=None)
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


def test_a_thousand_rescales_of_growing_targets_do_not_add_up(anew):
    rng, (head, unit, learn) = np.random.default_rng(2), anew()
    before = np.float64(unit.values(head(FEATURES)))
    for i in range(1000):
        learn(np.float32(rng.normal(i, 1 + i / 10, (20, 4))))
    after = np.float64(unit.values(head(FEATURES)))
    assert known(unit)[1] > 50
    np.testing.assert_allclose(after, before, atol=1e-4 * known(unit)[1])


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


def test_a_batch_without_live_transitions_changes_nothing():
    head, unit = made()
    before = head.w.numpy(), head.b.numpy()
    see(unit, np.full([2, 2], 7.0), tf.zeros([2, 2], tf.bool))
    assert known(unit) == [0, 1]
    np.testing.assert_array_equal(head.w, before[0])
    np.testing.assert_array_equal(head.b, before[1])


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_targets_that_are_not_finite_on_one_learner_change_nothing_on_any(wrong):
    heads = [made() for _ in range(2)]

    def learn(joined):
        head, unit = heads[joined.rank]
        targets = np.ones([2, 3])
        see(unit, targets, exchange=GradientReducer(joined, Config()))
        kept = [v.numpy() for v in (head.w, head.b, *unit.learning, *unit.acting)]
        targets[1, 1] = wrong if joined.rank else 2.0
        see(unit, targets, exchange=GradientReducer(joined, Config()))
        return kept, [v.numpy() for v in (head.w, head.b, *unit.learning, *unit.acting)]

    for kept, after in in_threads.together(2, learn):
        for one, other in zip(kept, after, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("learners", [2, 3])
def test_learners_hold_the_bits_of_each_other_and_the_moments_of_one_with_all_targets(learners):
    rng = np.random.default_rng(5)
    batches = rng.normal(1e5, rng.uniform(1, 1e4, (4, 1, 1)), (4, 10, 6))

    def learn(joined, heads):
        head, unit = heads[joined.rank]
        exchange = GradientReducer(joined, Config())
        for batch in batches:
            see(unit, np.array_split(batch, joined.size, 1)[joined.rank], exchange=exchange)
        return [v.numpy() for v in (head.w, head.b, *unit.learning, *unit.acting)]

    def together(size):
        heads = [made() for _ in range(size)]
        return in_threads.together(size, lambda joined: learn(joined, heads))

    (one,), several = together(1), together(learners)
    for each in several:
        for ours, first, theirs in zip(each, several[0], one, strict=True):
            np.testing.assert_array_equal(ours, first)
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_it_learns_targets_of_any_size_alike():
    """The outputs, and so the steps of training, do not depend on the rewards' unit."""
    rng = np.random.default_rng(6)
    truth = rng.normal(0, 1, (50, 1)).astype(np.float32)
    trained = []
    for scale in (1, 1e6):
        head, unit = made()
        head.w.assign(tf.zeros_like(head.w))
        head.b.assign([0])

        @tf.function(autograph=False)
        def learn(head=head, unit=unit, targets=scale * (5 + truth)):
            see(unit, targets)
            with tf.GradientTape() as tape:
                found = value_units.errors(unit.values(head(FEATURES)), targets)
                loss = tf.reduce_mean(found) / unit.squared()
            for variable, slope in zip(
                (head.w, head.b), tape.gradient(loss, [head.w, head.b]), strict=True
            ):
                variable.assign_sub(0.1 * slope)
            return loss

        for _ in range(100):
            loss = learn()
        trained.append((float(loss), np.array(unit.values(head(FEATURES))) / scale))
    np.testing.assert_allclose(*[loss for loss, _ in trained], rtol=1e-3)
    np.testing.assert_allclose(trained[1][1], trained[0][1], atol=1e-3)
