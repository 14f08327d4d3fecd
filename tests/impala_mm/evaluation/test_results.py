"""Rows of evaluations.jsonl are recorded whole, or the job is told."""

import resource

import numpy as np
import pytest

from impala_mm.environments.types import ReferenceScores
from impala_mm.evaluation import results
from impala_mm.evaluation.results import Evaluation
from impala_mm.records.run_contents import read_records


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
    assert read_records(path) == [first, last]


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
    assert [line.split() for line in printed.splitlines()[:4]] == [
        ["Pong", "mean", "median", "deviation", "least", "most"],
        ["return", "-3.05", "-3.05", "24.96", "-20.70", "14.60"],
        ["length", "in", "steps", "10.00", "10.00", "0.00", "10.00", "10.00"],
        ["normalised", "0.50", "0.50", "0.71", "0.00", "1.00"],
    ]
    for part in ("2, 4 at a time", "sampled from the policy", "seed 1", "2,000,000 frames"):
        assert part in printed
    cut = results.level_table(_played("Breakout", [0.0, 3.0], idle=1))
    assert "; most likely actions; " in cut
    assert cut.endswith("games ended after 1,000 steps without reward: 1")
    assert "normalised" not in cut


def test_several_games_end_in_the_figures_of_papers():
    """Median and mean are over levels, the interquartile mean is over all games played."""
    returns = {"A": [0.0, 2.0], "B": [5.0, 5.0], "C": [-10.0, 30.0]}  # random 0, a human 10
    scores = ReferenceScores(0.0, 10.0)
    played = [_played(level, values, scores) for level, values in returns.items()]
    *rows, last = results.overview_table([*played, _played("D", [7.0])]).splitlines()
    pooled = sorted(np.concatenate(list(returns.values())) / 10)  # -1 0 0.2 0.5 0.5 3
    middle = np.mean(pooled[1:-1])  # a quarter of six is one
    assert [row.split() for row in rows[1:]] == [
        ["A", "1.00", "0.10"],
        ["B", "5.00", "0.50"],
        ["C", "10.00", "1.00"],
        ["D", "7.00", "-"],
    ]
    assert "over 3 levels: median 0.50, mean 0.53, capped at 1 each 0.53, inter" in last
    assert f"quartile mean {middle:.2f}" in last
