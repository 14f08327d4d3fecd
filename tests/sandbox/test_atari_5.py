"""The median of Atari's 57 games, estimated from five, beside the medians that are published."""

import pytest

from sandbox.results import atari_5, compare

# The scores of the five games, and the median of all, in percent: dataset.csv of the authors.
PUBLISHED = {
    "Rainbow": ([62010.0, -0.3, 13136.0, 108528.6, 33817.5], 227.0),
    "IMPALA, deep": ([20885.0, -0.33, 21537.2, 210996.45, 351200.12], 191.8),
    "DQN": ([29900.0, -6.6, 8207.8, 8485.2, 13117.3], 77.6),
    "Ape-X": ([98895.0, 23.5, 25783.3, 224491.1, 302391.3], 434.1),
    "MuZero": ([178716.9, 23.91, 101197.71, 815728.7, 94906.25], 1010.6),
    # After 40 million frames; the median is that of the 57 games of CleanRL's table.
    "PPO, CleanRL": ([24283.75, -6.81, 5750.0, 14474.11, 17246.27], 102.3),
}


def test_the_estimates_are_near_the_published_medians():
    errors = [
        atari_5.estimate_median(dict(zip(atari_5.WEIGHTS, scores, strict=True))) * 100 / median - 1
        for scores, median in PUBLISHED.values()
    ]
    # Computed apart from this module, with weights fitted by least squares to all of that file.
    assert errors == pytest.approx([-0.008, 0.182, 0.158, 0.096, -0.009, -0.252], abs=0.002)


def test_a_score_below_that_of_random_play_counts_as_it():
    random = dict(zip(atari_5.WEIGHTS, (2360.0, -18.6, 2292.3, 761.4, 163.9), strict=True))
    assert atari_5.estimate_median(random) == 0
    assert atari_5.estimate_median(random | {"Qbert": 0.0}) == 0


def test_a_comparison_of_the_five_games_has_a_row_with_the_estimate():
    kinds = {
        game: {"ppo": {"frames": {"returns": [[0.0, score], [1.0, score]]}, "seconds": {"at": [9]}}}
        for game, score in zip(atari_5.WEIGHTS, PUBLISHED["DQN"][0], strict=True)
    }
    levels = {f"{game}NoFrameskip-v4": of_game for game, of_game in kinds.items()}
    row = compare.rows({"levels": levels})[-1]
    assert row[:4] == ["Atari-57 median, estimated", "ppo", "2", "0.898 (0.898 to 0.898)"]
    levels.pop("QbertNoFrameskip-v4")
    assert compare.rows({"levels": levels})[-1][0] == "all, 0 to 1"
