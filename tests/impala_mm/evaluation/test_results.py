"""Rows of evaluations.jsonl are recorded whole, or the job is told."""

import resource

import numpy as np
import pytest

from impala_mm.environments.types import ReferenceScores
from impala_mm.evaluation import results
from impala_mm.evaluation.results import Evaluation


def test_a_row_of_which_a_part_fits_on_the_disk_is_an_error_and_spoils_no_other(tmp_path):
    first = {"updates": 1, "options": {"a": 1}}
    path = results.append_row(tmp_path, first)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            results.append_row(tmp_path, {"updates": 2, "options": {"a": 1}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    last = {"updates": 3, "options": {"a": 1}}
    results.append_row(tmp_path, last)
    assert results.read_rows(tmp_path) == [first, last]


def _played(level, returns, scores=None, idle=0):
    return Evaluation(
        *(level, "runs/x/checkpoints/0000000001", 1, 2e6, idle > 0, 1, 4),
        {"no_reward_steps": 1000},
        scores,
        returns,
        [10] * len(returns),
        idle,
    )


def test_a_level_is_described_by_a_table():
    printed = results.level_table(_played("Pong", [-20.7, 14.6], ReferenceScores(-20.7, 14.6)))
    assert printed == (
        "Pong               mean  median  deviation   least   most\n"
        "return            -3.05   -3.05      24.96  -20.70  14.60\n"
        "length in steps   10.00   10.00       0.00   10.00  10.00\n"
        "human-normalised   0.50    0.50       0.71    0.00   1.00\n"
        "complete games: 2, 4 at a time; actions sampled from the policy; seed 1; checkpoint of "
        "2,000,000 frames"
    )


def test_games_that_were_cut_are_said():
    printed = results.level_table(_played("Breakout", [0.0, 3.0], idle=1))
    assert "; most likely actions; " in printed
    assert printed.endswith("\ngames ended after 1,000 steps without reward: 1")
    assert "human-normalised" not in printed


def test_several_games_end_in_the_figures_of_papers():
    """Median and mean are over levels, the interquartile mean is over all games played."""
    returns = {"A": [0.0, 2.0], "B": [5.0, 5.0], "C": [-10.0, 30.0]}  # random 0, a human 10
    played = [
        _played(level, list(values), ReferenceScores(0.0, 10.0))
        for level, values in returns.items()
    ]
    printed = results.overview_table([*played, _played("D", [7.0])])
    pooled = sorted(np.concatenate(list(returns.values())) / 10)  # -1 0 0.2 0.5 0.5 3
    middle = np.mean(pooled[1:-1])  # a quarter of six is one
    assert printed.splitlines() == [
        "level  mean return  human-normalised",
        "A             1.00              0.10",
        "B             5.00              0.50",
        "C            10.00              1.00",
        "D             7.00                 -",
        f"human-normalised over 3 games: median 0.50, mean 0.53, interquartile mean {middle:.2f} "
        f"(of all 6 games played, pooled)",
    ]
