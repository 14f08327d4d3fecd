"""Rows of metrics: shares of the learner's time, and the bottleneck that follows from them."""

import math
from types import SimpleNamespace

import pytest

from impala_mm.data.episodes import ReportedEpisodes, to_rows
from impala_mm.environments.types import Episode
from impala_mm.records import metrics
from impala_mm.records.bottleneck import describe_bottleneck, describe_turns, progress_line

BUSY = {"idle_cores": 0.1, "actors_elsewhere": 0}
MOVES = {"frames_per_second": 9.0}
ACTORS = {"actor/acting_share": 0.15, "actor/stepping_share": 0.83}


def _reported(episodes, level="catch"):
    """Return episodes that actor 0 reports: (whether a complete game, return, length)."""
    rows = to_rows(Episode(0, *episode) for episode in episodes)
    return ReportedEpisodes(level, 0, version=0, rows=rows, environments=1)


def test_a_learner_that_never_had_an_unroll_waits_all_the_time():
    meter, tally = metrics.Meter(), metrics.MetricsAggregator({"catch": None})
    meter.add_times(wait=9.0)
    tally.merge(0, meter.take_reading())
    assert tally.row(frames=100, steps=100)["wait_share"] == 1


STARVED = {"wait_share": 0.7, **MOVES}
FULL = {"wait_share": 0.0, "queue_fill": 1.0, **MOVES}
HELD = {"actor/waiting_share": 0.45}  # actors wait to send
REPLAYS = {"replay_share": 0.5}
OF_SAC = {"q/value": 1.0, "optimizer_steps": 32.0}
SLOW_POLICY = {"actor/acting_share": 0.6, "actor/stepping_share": 0.1}


@pytest.mark.parametrize(
    ("row", "actors", "name", "said"),
    [
        ({}, 0, "actors", "none is connected"),
        (MOVES, 2, "not known yet", ""),
        ({"wait_share": 1.0}, 2, "actors", "no unrolls arrive"),
        (STARVED, 3, "actors", "the learner waits 70% of its time); about 10 actors needed (3 now"),
        ({"wait_share": 0.81, **MOVES}, 2, "actors", "more than 5 times as many actors needed (2"),
        (STARVED | ACTORS, 3, "actors", "actors spend 83% of theirs in environments); about 10"),
        (STARVED | SLOW_POLICY, None, "actors", "60% of theirs computing actions); about 3.3 time"),
        (STARVED | BUSY, 3, "actors", "; this machine's cores are busy, add hosts"),
        (STARVED | HELD | BUSY, 2, "cores", "unrolls, actors wait 45% of theirs to send them"),
        (STARVED | HELD | ACTORS, 2, "network", "unrolls, actors wait 45% of theirs to send them"),
        (STARVED | {"actor/waiting_share": 0.25}, 2, "actors", "about 7 actors needed (2 now)"),
        (STARVED | SLOW_POLICY | {"inference_batch": 8.0}, 2, "inference", "actors wait 60% of th"),
        (STARVED | REPLAYS, 2, "actors", "needed (2 now), or a larger --replay_ratio"),
        (STARVED | REPLAYS | OF_SAC, 2, "actors", "needed (2 now), or a larger --updates_per_step"),
        (STARVED | REPLAYS | HELD | {"queue_fill": 1.0}, 2, "replay", "actors wait 45% of theirs"),
        (FULL, 2, "learner", "it trains 90% of its time); a GPU or another learner would help"),
        (FULL | HELD, 5, "learner", "actors wait 45% of theirs)"),
        (FULL | HELD, 5, "learner", "or 3 of the 5 actors would be enough"),
        (FULL | REPLAYS, 2, "learner", "a GPU, another learner or fewer old unrolls in --replay"),
        (FULL | REPLAYS | OF_SAC, 2, "learner", "another learner or a smaller --updates_per_step"),
    ],
)
def test_the_verdict_names_the_bottleneck_its_evidence_and_advice(row, actors, name, said):
    verdict = describe_bottleneck({"frames_per_second": 0.0, "train_share": 0.9} | row, actors)
    assert verdict.startswith(f"bottleneck: {name}")
    assert said in verdict


def test_more_actors_are_sent_elsewhere_only_where_no_core_is_left_for_them():
    idle, elsewhere = {"idle_cores": 0.4}, {"actors_elsewhere": 1}
    for row in (BUSY | idle, BUSY | elsewhere, {"idle_cores": 0.0}):
        said = describe_bottleneck(STARVED | row | {"train_share": 0.3}, 3)
        assert said.endswith("actors needed (3 now)")


def test_what_actors_waited_for_before_the_first_update_ended_tells_nothing(monkeypatch):
    """The update was being compiled, so their unrolls could not be used."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(metrics, "time", clock)
    meter, tally = metrics.Meter(), metrics.MetricsAggregator({"catch": None})
    meter.add_actor_times({"playing": 1.0, "waiting": 0.5})
    meter.add_times(train=9.0)
    clock.now += 2
    meter.add_actor_times({"playing": 9.0, "waiting": 8.0})
    meter.add_actor_times({"playing": 1.0, "waiting": 0.1})
    tally.merge(0, meter.take_reading())
    row = tally.row(1, 1)
    assert row["actor/waiting_share"] == pytest.approx(0.1)
    assert "actor/policy_wait_share" not in row, "only actors of rounds wait for a policy"


def test_of_a_small_part_of_a_rows_time_no_shares_are_told(monkeypatch):
    """The first updates find a queue that was filled while the update was compiled."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(metrics, "time", clock)
    meter, tally = metrics.Meter(), metrics.MetricsAggregator({"catch": None})
    tally.start(0, 0)
    shares = []
    each = ({"train": 9.0}, {"train": 0.1}, {"train": 0.1, "wait": 1.9})
    for update, times in enumerate(each, 1):
        meter.add_times(**times)
        clock.now += 2
        tally.merge(0, meter.take_reading())
        shares.append(tally.row(update, update, update).get("train_share"))
    assert shares == [None, None, pytest.approx(0.05)]


def test_returns_of_several_games_are_kept_apart_and_compared_with_humans():
    """A random policy is 0 and a human 1; over several games the median is reported."""
    meter = metrics.Meter()
    scores = {"Pong": (-20.0, 20.0), "Breakout": (0.0, 30.0), "catch": None}
    tally = metrics.MetricsAggregator(scores)
    games = {"Pong": [0.0, 0.0], "Breakout": [60.0, 30.0], "catch": [1.0]}
    for level, returns in games.items():
        meter.add_episodes(_reported([*((1, x, 10) for x in returns), (0, 99.0, 5)], level))
    tally.merge(0, meter.take_reading())
    row = tally.row(0, 0)
    assert row["episode_return"] == pytest.approx(91 / 5)
    assert row["shaped_return"] == 99
    assert [row[f"episode_return/{game}"] for game in games] == [0, 45, 1]
    assert [row[f"normalised_score/{game}"] for game in ("Pong", "Breakout")] == [0.5, 1.5]
    assert row["normalised_score"] == 1.0
    assert row["capped_score"] == 0.75
    assert "normalised_score/catch" not in row

    tally = metrics.MetricsAggregator({"Pong": (-20.0, 20.0)})
    meter.add_episodes(_reported([(1, 10.0, 9)], "Pong"))
    tally.merge(0, meter.take_reading())
    row = tally.row(0, 0)
    assert row["normalised_score"] == 0.75
    assert not [name for name in row if name.endswith("/Pong")], "one game needs no name"


# -- several learners


def _part(steps, **times):
    meter = metrics.Meter()
    meter.add_times(train=1.0)  # the first update's times, which are discarded
    meter.take_reading()
    meter.add_times(**times)
    meter.add({"grad_norm": float(steps), "queue_fill": steps / 100}, steps)
    return meter.take_reading()


def test_a_row_of_several_learners_holds_their_means_and_each_ones_own():
    tally = metrics.MetricsAggregator({"catch": None}, learners=2)
    tally.start(0, 0)
    tally.merge(0, _part(10, wait=1.0, train=3.0))
    tally.merge(0, _part(30, wait=0.0, train=4.0))
    tally.merge(1, _part(20, wait=6.0, exchange=2.0))
    row = tally.row(60, 60)
    assert row["grad_norm"] == 20
    assert row["wait_share"] == 7 / 16
    assert row["exchange_share"] == 2 / 16
    assert (row["wait_share/learner0"], row["wait_share/learner1"]) == (1 / 8, 6 / 8)
    assert (row["steps/learner0"], row["steps/learner1"]) == (40, 20)
    assert row["queue_fill/learner1"] == pytest.approx(0.2)
    assert "grad_norm/learner1" not in row
    tally.merge(0, _part(5, wait=1.0))
    later = tally.row(65, 65)
    assert (later["steps/learner0"], later["steps/learner1"]) == (45, 20)
    assert "wait_share/learner1" not in later, "nothing was heard from it"


def test_games_that_come_after_those_that_ended_the_run_count_no_more():
    meter, tally = metrics.Meter(), metrics.MetricsAggregator({"catch": None})
    meter.add_episodes(_reported([(1, 1.0, 9)] * 100))
    tally.merge(0, meter.take_reading())
    assert tally.mean_return() == 1
    tally.close()
    meter.add_episodes(_reported([(1, -1.0, 9)] * 50))
    tally.merge(0, meter.take_reading())
    assert tally.row(0, 0)["episode_return"] == 1


def test_games_of_all_learners_are_kept_until_they_are_taken():
    tally = metrics.MetricsAggregator({"catch": None}, learners=2, keeps_games=True)
    for rank in range(2):
        meter, rows = metrics.Meter(), to_rows([Episode(0, True, 1.0, 9), Episode(1, False, 2, 3)])
        meter.add_episodes(ReportedEpisodes("catch", 3 + rank, 7, rows, environments=4))
        tally.merge(rank, meter.take_reading())
    played = {"level": "catch", "return": 1.0, "length": 9, "environment": 0, "policy_version": 7}
    assert tally.take_games() == [played | {"actor": 3}, played | {"actor": 4}]
    assert tally.take_games() == []


def test_what_came_before_the_first_update_is_forgotten_even_where_it_was_passed_on():
    """Readings are taken every second, rows are written every two."""
    meter, tally = metrics.Meter(), metrics.MetricsAggregator({"catch": None})
    meter.add_times(wait=5.0)
    tally.merge(0, meter.take_reading())
    meter.add_times(wait=1.0, train=9.0)
    tally.merge(0, meter.take_reading())
    assert "wait_share" not in tally.row(1, 1)
    meter.add_times(wait=1.0, train=3.0)
    tally.merge(0, meter.take_reading())
    assert tally.row(2, 2)["wait_share"] == 0.25


@pytest.mark.parametrize(
    ("waits", "exchanges", "moves", "said"),
    [
        (
            (0.0, 0.6),
            (0.6, 0.0),
            9.0,
            "learner 1 (it waits 60% of its time for unrolls, the other learners wait for it)",
        ),
        ((0.9, 0.0), (0.0, 0.9), 0.0, "learner 0 (no unrolls, the other learners wait for it)"),
        ((0.5, 0.4), (0.0, 0.1), 9.0, "actors (the learners wait 45% of their time); about 4 act"),
        ((0.0, 0.0), (0.5, 0.1), 9.0, "learner 1 (the slowest: learner 0 waits for it 50% of its"),
        ((0.0, 0.0), (0.1, 0.2), 9.0, "learners (they train 50% of their time and wait for each"),
        ((0.0, 0.0), (0.4, 0.6), 9.0, "all-reduce (50% of the learners' time)"),
        ((0.6, 0.6), (0.4, 0.4), 9.0, "actors (the learners wait 60% of their time)"),
    ],
)
def test_of_several_learners_the_one_that_the_others_wait_for_is_named(
    waits, exchanges, moves, said
):
    row = {"frames_per_second": moves, "wait_share": sum(waits) / 2, "queue_fill": 0.9}
    row |= {"train_share": 0.5, "exchange_share": sum(exchanges) / 2}
    for rank in range(2):
        row[f"wait_share/learner{rank}"] = waits[rank]
        row[f"exchange_share/learner{rank}"] = exchanges[rank]
    assert describe_bottleneck(row, 2).startswith(f"bottleneck: {said}")


def test_the_progress_line_has_the_losses_per_step_and_an_eta_once_it_is_known():
    row = {"frames": 263558.0, "frames_per_second": 6975.2}
    assert progress_line(row, None) == "263,558 frames | 6,975/s"
    row |= {"episode_return": 249.338, "policy_lag": 19.6, "loss/total": 5.0}
    row |= {"loss_per_step/total": 0.03125}
    assert progress_line(row, 720.0) == (
        "263,558 frames | 6,975/s | return 249.34 | lag 19.6 | loss 0.0312 | ETA 12 min"
    )


def test_a_deterministic_run_is_told_that_it_takes_turns_and_given_no_advice():
    assert describe_turns({}) == "bottleneck: not known yet"
    assert "--deterministic_run (the actor plays while the learner waits, 62%" in describe_turns(
        {"wait_share": 0.62}
    )


def test_the_last_quarter_of_the_environments_is_the_one_that_explores_least():
    tally, meter = metrics.MetricsAggregator({"catch": None}), metrics.Meter()

    def play(number, count, value, whole=1):
        rows = to_rows([Episode(number, whole, value, 9)] * count)
        meter.add_episodes(ReportedEpisodes("catch", 0, 0, rows, environments=8))
        tally.collect(0, meter)
        return tally.mean_return_of_last_quarter()

    for number in range(8):  # the return of a game is the number of its environment
        known = play(number, 12, float(number))
    assert math.isnan(known), "96 games are not 100"
    play(7, 5, -99.0, whole=0)
    assert play(7, 4, 32.5) == (12 * 6 + 12 * 7 + 4 * 32.5) / 28
    assert play(0, 100, 3.0) == 3.0, "the actor of that quarter has left"
