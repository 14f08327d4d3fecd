"""Shares of random actions, and the actions that are chosen with them."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import EnvironmentNumber
from impala_mm.algorithms.q_learning import epsilon


@pytest.mark.parametrize("count", [2, 5, 32])
def test_the_ladder_is_that_of_r2d2(count):
    among = EnvironmentNumber(tf.range(count), tf.constant(count))
    expected = 0.4 ** np.linspace(1, 8, count)
    np.testing.assert_allclose(epsilon.of_ladder(among, 0.4), expected, rtol=1e-5)


def test_a_single_environment_has_the_middle_of_the_ladder():
    alone = EnvironmentNumber(tf.zeros([2], tf.int32), tf.constant(1))
    np.testing.assert_allclose(epsilon.of_ladder(alone, 0.4), 0.4**4.5, rtol=1e-5)


def test_the_share_falls_in_a_line_and_stays():
    found = [epsilon.decayed(tf.constant(f), 1.0, 0.2, 100.0) for f in (0.0, 50.0, 100.0, 1e6)]
    np.testing.assert_allclose(found, [1.0, 0.6, 0.2, 0.2], rtol=1e-6)
    assert float(epsilon.decayed(tf.constant(0.0), 1.0, 0.2, 0.0)) == pytest.approx(0.2)


def test_random_actions_have_their_share_and_respect_masks():
    tf.random.set_seed(1)
    n = 20_000
    values = tf.tile([[0.0, 3.0, 1.0, 2.0]], [n, 1])
    mask = tf.tile([[True, False, True, True]], [n, 1])
    shares = tf.repeat([0.0, 0.6], n // 2)
    found = epsilon.choose(values, mask, shares).numpy()
    assert (found[: n // 2] == 3).all(), "the best that is allowed"
    counts = np.bincount(found[n // 2 :], minlength=4) / (n // 2)
    np.testing.assert_allclose(counts, [0.2, 0.0, 0.2, 0.6], atol=0.02)
