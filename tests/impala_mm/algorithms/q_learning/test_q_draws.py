"""The random numbers of Q-networks: those of several learners are those of one."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.q_learning.draws import Acting, Calm, Trained

STEPS, COLUMNS = 3, 8


def _of(rank, size, update=5, use=1, copies=1):
    group = SimpleNamespace(rank=rank, size=size)
    number = tf.constant(update, tf.int64)
    return Trained(group, 7, number, use, COLUMNS // size, copies)


def _everything(draws, copies=1):
    """Return (levels, offsets) by copy and column, and the noise, of an update."""
    like = tf.zeros([STEPS, draws._columns * copies])
    levels = draws.levels(like, 6).numpy()
    offsets = draws.offsets(4).numpy()
    noise = draws.noise(3, 2)
    return (
        levels.reshape(STEPS, copies, -1, 6),
        offsets.reshape(copies, -1, 2),
        np.concatenate([n.numpy() for n in noise], 1),
    )


@pytest.mark.parametrize(("size", "copies"), [(2, 1), (4, 3)])
def test_learners_with_a_share_of_the_columns_draw_what_one_with_all_draws(size, copies):
    levels, offsets, noise = _everything(_of(0, 1, copies=copies), copies)
    each = [_everything(_of(rank, size, copies=copies), copies) for rank in range(size)]
    np.testing.assert_array_equal(np.concatenate([x[0] for x in each], 2), levels)
    np.testing.assert_array_equal(np.concatenate([x[1] for x in each], 1), offsets)
    for _, _, theirs in each:
        np.testing.assert_array_equal(theirs, noise)


def test_updates_readings_and_layers_have_numbers_of_their_own():
    drawn = [_everything(_of(0, 1, update, use)) for update in (5, 6) for use in (0, 1)]
    for i in range(3):
        assert len({x[i].tobytes() for x in drawn}) == len(drawn)
    draws = _of(0, 1)
    assert not np.allclose(draws.noise(3, 2)[0], draws.noise(3, 2)[0])


def test_offsets_are_all_between_the_largest_and_levels_are_uniform():
    draws = Trained(SimpleNamespace(rank=0, size=1), 0, tf.constant(0, tf.int64), 0, 5000, 1)
    numbers, counts = np.unique(draws.offsets(2), return_counts=True)
    np.testing.assert_array_equal(numbers, [-2, -1, 0, 1, 2])
    np.testing.assert_allclose(counts, 2000, atol=200)
    levels = np.sort(np.ravel(draws.levels(tf.zeros([1, 5000]), 4)))
    np.testing.assert_allclose(levels, np.linspace(0, 1, len(levels)), atol=0.02)


def test_acting_draws_uniform_levels_and_noise_that_exploration_scales():
    tf.random.set_seed(1)
    draws = Acting(tf.constant([1.0] * 4000 + [0.0] * 10))
    of_inputs, of_outputs = (n.numpy() for n in draws.noise(2, 3))
    assert of_inputs.shape == (4010, 2)
    assert not of_outputs[4000:].any()
    for factors in (of_inputs[:4000], of_outputs[:4000]):  # squares of roots of normal numbers
        assert np.square(factors).mean() == pytest.approx(np.sqrt(2 / np.pi), abs=0.03)
    levels = draws.levels(tf.zeros([4010]), 5).numpy()
    assert levels.shape == (4010, 5)
    np.testing.assert_allclose(np.quantile(levels, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)


def test_calm_levels_are_the_middles_of_equal_parts():
    found = Calm().levels(tf.zeros([2, 3]), 4)
    np.testing.assert_allclose(found, np.broadcast_to([0.125, 0.375, 0.625, 0.875], [2, 3, 4]))
    assert Calm().noise is None
