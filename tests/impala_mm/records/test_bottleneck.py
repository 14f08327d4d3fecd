"""The verdict of a run's rows: advice comes once several rows agree, and its figures are means."""

import pytest

from impala_mm.records.bottleneck import VerdictWriter


def _row(wait, acting=0.2, moves=9.0):
    shares = {"wait_share": wait, "train_share": 1 - wait, "actor/acting_share": acting}
    return {"frames_per_second": moves, "queue_fill": 0.0, "inference_batch": 8.0} | shares


def _verdicts(*rows, actors=2):
    writer = VerdictWriter()
    return [writer.update(row, actors) for row in rows]


def test_the_first_rows_name_the_bottleneck_and_the_fourth_adds_advice():
    *first, fourth, fifth = _verdicts(*map(_row, (0.9, 0.7, 0.6, 0.6, 0.5)))
    for verdict, wait in zip((*first, fourth), (90, 80, 73, 70), strict=True):
        assert verdict.startswith(f"bottleneck: actors (the learner waits {wait}% of its time, ")
    assert not any("needed" in verdict for verdict in first)
    assert fourth.endswith("about 7 actors needed (2 now)")
    assert fifth.endswith("about 5 actors needed (2 now)"), "the row before the fourth last is out"


def test_while_rows_name_different_bottlenecks_there_is_no_advice():
    verdicts = _verdicts(*(_row(0.9, acting) for acting in (0.6, 0.4, 0.6, 0.4, 0.6, 0.4)))
    assert not any("needed" in each or "would help" in each for each in verdicts)
    assert all(each.endswith(")") for each in verdicts)


def test_a_verdict_with_advice_is_held_while_rows_name_another_for_less_than_30_s():
    before, during = [_row(0.9)] * 20, [_row(0.05)] * 14
    *_, held = _verdicts(*before, *during)
    assert held.startswith("bottleneck: actors ")
    assert "needed" in held
    *_, changed = _verdicts(*before, *during, *[_row(0.05)] * 6)
    assert changed == "balanced: learner and actors keep pace"


def test_a_run_that_keeps_pace_or_has_no_actors_says_so_at_once():
    assert _verdicts(_row(0.05)) == ["balanced: learner and actors keep pace"]
    assert _verdicts(_row(1.0), actors=0)[0].startswith("bottleneck: actors (none is connected)")
    assert _verdicts({"frames_per_second": 9.0}) == ["bottleneck: not known yet"]


def test_a_standstill_is_reported_at_once_and_does_not_enter_the_means():
    verdicts = _verdicts(*[_row(0.5)] * 4, _row(1.0, moves=0.0), _row(0.5))
    assert verdicts[4].startswith("bottleneck: actors (no unrolls arrive); check the actors' logs")
    assert verdicts[3] == verdicts[5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"round_progress": [(3, 8), (0, 0), (1, 8)]}, "4 of its 16 unrolls have arrived"),
        ({"filling": (1200, 5000)}, "the replay is filling: 1,200 of the 5,000 unrolls"),
    ],
)
def test_a_standstill_may_be_a_round_that_is_played_or_a_replay_that_is_filled(given, said):
    writer, row = VerdictWriter(), _row(1.0, moves=0.0)
    assert said in writer.update(row, 2, **given)
    assert "no unrolls arrive" in writer.update(row, 2, round_progress=[(0, 0)])
    assert "none is connected" in writer.update(row, 0, **given)
    assert said not in writer.update(_row(1.0), 2, **given)


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (0.6, ("bottleneck: actors ", "waits 60%", "spend 40%", "fewer --num_envs")),
        (0.2, ("bottleneck: learner ", "trains 80%", "a GPU or another learner")),
    ],
)
def test_where_actors_wait_for_the_next_policy_the_verdict_says_so(wait, said):
    row = _row(wait, acting=0.4) | {"actor/policy_wait_share": 0.35, "actor/waiting_share": 0.01}
    del row["inference_batch"]
    verdict = _verdicts(row, row, row, row)[-1]
    for part in (*said, "wait for the next policy 35%"):
        assert part in verdict
