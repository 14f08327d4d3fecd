"""What a row of metrics says of the learner's time, and the verdict drawn from it."""

import numpy as np
import pytest

from impala_mm import metrics
from impala_mm.verdict import verdict


def _row(*times):
    meter, tally = metrics.Meter(), metrics.Tally({"catch": None})
    for each in times:
        meter.add_times(**each)
    tally.merge(0, meter.part())
    return tally.row(frames=100, steps=100)


UPDATE = {"wait": 1.0, "train": 2.0, "rest": 1.0}


def test_the_start_up_to_the_first_update_counts_as_nothing():
    assert "wait_share" not in _row({"wait": 9.0}, UPDATE | {"train": 90.0})
    assert _row({"wait": 9.0}, UPDATE | {"train": 90.0}, UPDATE)["train_share"] == 0.5


def test_a_learner_that_never_had_an_unroll_waits_all_the_time():
    assert _row({"wait": 9.0})["wait_share"] == 1


@pytest.mark.parametrize(
    ("row", "actors", "said"),
    [
        ({}, 0, "no actor is here"),
        ({}, 2, "an update is running"),
        ({"frames_per_second": 9.0}, 2, "too early"),
        ({"wait_share": 1.0}, 2, "none came"),
        ({"frames_per_second": 9.0, "wait_share": 0.38}, 2, "unrolls 38% of the time: add actors"),
        ({"frames_per_second": 9.0, "wait_share": 0.0, "queue_fill": 1.0}, 2, "the learner binds"),
        ({"frames_per_second": 9.0, "wait_share": 0.05, "queue_fill": 0.2}, 2, "balanced"),
    ],
)
def test_the_verdict_names_what_binds(row, actors, said):
    row = {"frames_per_second": 0.0, "train_share": 0.9} | row
    assert said in verdict(row, actors)


def test_returns_of_several_games_are_kept_apart_and_compared_with_humans():
    """Random is 0 and a human 1; of several games the median counts."""
    meter = metrics.Meter()
    tally = metrics.Tally({"Pong": (-20.0, 20.0), "Breakout": (0.0, 30.0), "catch": None})
    games = {"Pong": [0.0, 0.0], "Breakout": [60.0, 30.0], "catch": [1.0]}
    for level, returns in games.items():
        episodes = [(1, value, 10) for value in returns] + [(0, 99.0, 5)]
        meter.add_episodes(level, np.array(episodes, np.float32))
    tally.merge(0, meter.part())
    row = tally.row(0, 0)
    assert row["episode_return"] == pytest.approx(91 / 5)
    assert row["shaped_return"] == 99
    assert row["episode_return/Pong"] == 0
    assert row["episode_return/Breakout"] == 45
    assert row["episode_return/catch"] == 1
    assert row["human_normalised/Pong"] == 0.5
    assert row["human_normalised/Breakout"] == 1.5
    assert row["human_normalised"] == 1.0
    assert "human_normalised/catch" not in row


def test_one_game_needs_no_name_of_its_own():
    meter, tally = metrics.Meter(), metrics.Tally({"Pong": (-20.0, 20.0)})
    meter.add_episodes("Pong", np.array([(1, 10.0, 9)], np.float32))
    tally.merge(0, meter.part())
    row = tally.row(0, 0)
    assert row["human_normalised"] == 0.75
    assert not [name for name in row if name.endswith("/Pong")]
