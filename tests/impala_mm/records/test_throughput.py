"""The progress line's ETA: only for a stable rate, and until the limit that comes first."""

import math

from impala_mm.records.metrics import EtaEstimator


def _etas(rates, total=1000.0, max_seconds=math.inf, frames=0.0, seconds=0.0):
    """Return the estimates after each row; a row covers 2 s."""
    estimator, found = EtaEstimator(total, max_seconds), []
    for rate in rates:
        frames, seconds = frames + 2 * rate, seconds + 2
        found.append(estimator.update({"frames": frames, "frames_per_second": rate}, seconds))
    return found


def test_there_is_none_before_several_rows_agree():
    assert _etas([10.0] * 7) == [None] * 5 + [88.0, 86.0]
    rising = [0.0, 0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0]
    assert _etas(rising, total=1e6) == [None] * 8


def test_a_run_without_an_end_has_none():
    assert _etas([10.0] * 8, total=math.inf) == [None] * 8
    assert _etas([10.0] * 8, total=math.inf, max_seconds=100)[-1] == 84
    assert _etas([0.0] * 9, max_seconds=100.0) == [None] * 9, "it makes no frames"


def test_a_rate_that_varies_from_row_to_row_is_stable_where_its_mean_is():
    *_, last = _etas([8.0, 12.0] * 5)
    assert last == (1000 - 200) / 10


def test_a_stable_rate_may_vary_more_than_one_that_is_not_stable_yet():
    assert _etas([10.0] * 6 + [15.0] * 2)[-1] == (1000 - 180) / (70 / 6)
    assert _etas([10.0] * 4 + [15.0] * 2) == [None] * 6


def test_after_a_change_of_the_rate_there_is_none_until_it_is_stable_again():
    etas = _etas([10.0] * 6 + [100.0] * 8, total=1e4)
    assert etas[5] == (1e4 - 120) / 10
    assert etas[6:9] == [None] * 3
    assert etas[-1] == (1e4 - 120 - 1600) / 100


def test_the_limit_that_comes_first_counts():
    assert _etas([10.0] * 6, max_seconds=50.0)[-1] == 50 - 12
    assert _etas([10.0] * 6, max_seconds=500.0)[-1] == 88
    assert _etas([10.0] * 6, total=60.0)[-1] == 0, "never below 0"


def test_frames_and_seconds_of_a_resumed_run_are_those_of_all_its_starts():
    assert _etas([10.0] * 6, frames=500.0, seconds=60.0)[-1] == 38
    assert _etas([10.0] * 6, max_seconds=100.0, frames=500.0, seconds=60.0)[-1] == 28
