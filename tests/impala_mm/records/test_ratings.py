"""Elo ratings and scores against opponents."""

import json

import numpy as np

from impala_mm.records.ratings import OpponentRatings

_NAMES = ("self", "past", "lean:bot")


def test_ratings_follow_strength():
    """Policies of known strengths play; the distance of their ratings is the strengths' distance.

    Past policy v has 100 x v points more than policy 0, and the newest has 300.
    """
    random, ratings = np.random.default_rng(0), OpponentRatings(_NAMES)
    distances = []
    for n in range(10_000):
        version = int(random.integers(4))
        chance = 1 / (1 + 10 ** ((100 * version - 300) / 400))
        ratings.add(version if n else 0, float(random.random() < chance))
        if n > 2000:
            distances.append([ratings.row()["elo"], *(ratings._past[v] for v in range(4))])
    newest, *past = np.mean(distances, 0)
    assert past[0] == 0, "the first one is what the others refer to"
    np.testing.assert_allclose([newest, *past], [300, 0, 100, 200, 300], atol=40)
    resumed = OpponentRatings(_NAMES)
    resumed.restore(json.loads(json.dumps(ratings.saved())))
    for each in (ratings, resumed):
        each.add(0, 1.0)
    names = "elo", "elo_past", "elo_past_best"
    assert [resumed.row()[name] for name in names] == [ratings.row()[name] for name in names]
    row = ratings.row()
    assert row["elo_past"] == np.mean([*ratings._past.values()])
    assert row["elo_past_best"] == max(ratings._past.values())


def test_ratings_do_not_drift_however_many_past_policies_play():
    """400 past policies have 0 to 500 points, and the newest has 500."""
    random, ratings = np.random.default_rng(0), OpponentRatings(_NAMES)
    for version in random.integers(400, size=20_000).tolist():
        chance = 1 / (1 + 10 ** ((500 * version / 400 - 500) / 400))
        ratings.add(version, float(random.random() < chance))
    assert 0 < ratings.row()["elo"] < 1000


def test_a_past_policy_enters_with_the_newest_ones_rating_after_random_games():
    ratings = OpponentRatings(("random", "past"))
    for _ in range(50):
        ratings.add(-2, 1.0)
    newest = ratings.row()["elo"]
    ratings.add(5, 0.5)
    row = ratings.row()
    assert row["elo"] == row["elo_past"] == newest > 100


def test_each_kind_of_opponent_has_a_score_of_its_last_games():
    ratings = OpponentRatings(_NAMES)
    assert ratings.row() == {}
    for number, score in ((-1, 1.0), (-2, 0.5), (-4, 0.0), (-4, 1.0), (-3, 1.0), (9, 0.0)):
        ratings.add(number, score)
    row = ratings.row()
    assert {name: value for name, value in row.items() if "/" in name} == {
        "score/self": 0.5,
        "score/past": 0.5,
        "score/lean:bot": 0.5,
        "lost/self": 0.0,
        "lost/past": 0.5,
        "lost/lean:bot": 0.5,
    }
    for _ in range(100):
        ratings.add(-4, 1.0)
    assert ratings.row()["score/lean:bot"] == 1.0
    assert ratings.describe(9, 0.5) == {"opponent": "past 9", "score": 0.5}
    assert ratings.describe(-4, 1.0)["opponent"] == "lean:bot"
    assert ratings.describe(-1, 0.5) == {}


def test_random_opponents_are_rated_0():
    random, ratings = np.random.default_rng(0), OpponentRatings(("random",))
    ratings_seen = []
    for n in range(4000):
        ratings.add(-2, float(random.random() < 10 / 11))
        ratings_seen += [ratings.row()["elo"]] * (n > 1000)
    assert abs(np.mean(ratings_seen) - 400) < 30
