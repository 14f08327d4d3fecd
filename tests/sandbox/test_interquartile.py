"""The interquartile mean against published examples, and its band against repeated experiments."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import ROOT

sys.path.append(str(ROOT / "sandbox"))  # the scripts import each other by their short names

from interquartile import bootstrap_band, interquartile_mean


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        # The tests of rliable.
        ([[1, 2], [2, 2], [1, 1], [2, 1]], 1.5),
        ([[1, 1], [2, 2], [3, 3]], 2),
        # Wikipedia's article on the interquartile mean.
        ([[5], [8], [4], [38], [8], [6], [9], [7], [7], [3], [1], [6]], 6.5),
        ([[1], [3], [5], [7], [9], [11], [13], [15], [17]], 9),
    ],
)
def test_published_examples(scores, mean):
    assert interquartile_mean(np.array(scores, float)) == pytest.approx(mean)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_it_is_the_mean_of_the_scores_without_a_quarter_at_either_end(numbers, tasks, points):
    scores = np.resize(np.array(numbers), (len(numbers), tasks, points))
    found = interquartile_mean(scores)
    assert found.shape == (points,)
    for point in range(points):
        ordered = sorted(scores[:, :, point].flatten().tolist())
        kept = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
        assert found[point] == pytest.approx(sum(kept) / len(kept), abs=1e-6)


def test_the_band_is_the_same_each_time_and_holds_the_mean():
    scores = np.random.default_rng(1).normal(size=(10, 2, 5))
    band, mean = bootstrap_band(scores), interquartile_mean(scores)
    assert band.low.shape == band.high.shape == (5,)
    assert (band.low < mean).all()
    assert (mean < band.high).all()
    np.testing.assert_array_equal(band.low, bootstrap_band(scores).low)
    wide, narrow = bootstrap_band(scores, level=0.99), bootstrap_band(scores, level=0.5)
    assert (wide.high - wide.low > narrow.high - narrow.low).all()


def test_runs_that_agree_have_a_band_of_no_width_whatever_other_tasks_do():
    """Runs are drawn within their own task: no run of one task stands in for another's."""
    same = np.tile([1.0, 5.0], (6, 1))
    band = bootstrap_band(same)
    assert band.low == band.high == interquartile_mean(same) == 3.0


def test_the_band_of_repeated_experiments_holds_the_true_mean_about_as_often_as_it_says():
    random, hits, trials = np.random.default_rng(0), 0, 300
    for trial in range(trials):
        band = bootstrap_band(random.normal(size=(20, 1)), samples=300, level=0.9, seed=trial)
        hits += band.low <= 0.0 <= band.high
    assert 0.82 < hits / trials < 0.96
