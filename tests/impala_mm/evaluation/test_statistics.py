"""Statistics of returns against numbers computed by hand."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impala_mm.environments.types import ReferenceScores
from impala_mm.evaluation.results import interquartile_mean, normalised, number, summarise, table

_numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(_numbers)
def test_a_summary_agrees_with_python_s_own_statistics(values):
    found = summarise(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert (found.least, found.most) == (min(values), max(values))
    assert found.median == pytest.approx(statistics.median(values), abs=1e-6)
    if len(values) == 1:
        assert math.isnan(found.deviation)
        assert number(found.deviation) == "-"
    else:
        assert found.deviation == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ([9, 1, 2, 3, 4, 5, 6, 100], 4.5),  # from 1 2 | 3 4 5 6 | 9 100
        ([3, 1, 2], 2.0),  # a quarter of three is less than one value: nothing is cut
        ([0, 0, 7, 7, 7, 7, 7, 50, 60, 70], (7 * 5 + 50) / 6),  # two on each side
    ],
)
def test_the_interquartile_mean_is_as_computed_by_hand(values, due):
    assert interquartile_mean(values) == pytest.approx(due)


def test_random_play_is_0_and_a_human_is_1():
    assert normalised([-20.7, 14.6, -3.05], ReferenceScores(-20.7, 14.6)) == pytest.approx(
        [0, 1, 0.5]
    )


def test_a_table_s_columns_line_up():
    lines = table(["level", "mean"], [["a", "1.00"], ["longer", "-1,234.50"]]).split("\n")
    assert lines == ["level        mean", "a            1.00", "longer  -1,234.50"]
    assert number(np.float64(1234.567)) == "1,234.57"
