"""Distances of features, worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from impala_mm.replay.distances import DISTANCES, cosine, kl

A, B = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])


def test_l1_and_l2():
    np.testing.assert_allclose(DISTANCES["l1"](A, B), [7, 2])
    np.testing.assert_allclose(DISTANCES["l2"](A, B), [5, np.sqrt(2)])


def test_the_cosine_is_a_distance_and_not_a_similarity():
    x = np.array([1.0, 0.0])
    others = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(cosine(np.broadcast_to(x, others.shape), others), [0, 1, 2, 1])
    assert cosine(np.zeros(2), np.zeros(2)) == 0


def test_kl_is_that_of_softmax_and_bears_large_numbers():
    a, b = np.array([0.3, -1.0, 2.0]), np.array([1.0, 0.5, -0.2])
    p, q = (np.exp(x) / np.exp(x).sum() for x in (a, b))
    np.testing.assert_allclose(kl(a, b), stats.entropy(p, q))
    assert kl(a, a) == pytest.approx(0)
    assert np.isfinite(kl(1e4 * a, 1e4 * b))
