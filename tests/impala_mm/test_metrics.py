"""What a row of metrics says of the learner's time, and the verdict drawn from it."""

import pytest

from impala_mm import metrics


def _row(*times):
    meter = metrics.Meter()
    for each in times:
        meter.add_times(**each)
    return meter.row(frames=100, steps=100)


UPDATE = {"wait": 1.0, "train": 2.0, "rest": 1.0}


def test_the_start_up_to_the_first_update_counts_as_nothing():
    assert "wait_share" not in _row({"wait": 9.0}, UPDATE | {"train": 90.0})
    assert _row({"wait": 9.0}, UPDATE | {"train": 90.0}, UPDATE)["train_share"] == 0.5


def test_a_learner_that_never_had_an_unroll_waits_all_the_time():
    assert _row({"wait": 9.0})["wait_share"] == 1


@pytest.mark.parametrize(
    ("row", "actors", "said"),
    [
        ({}, 0, "no actors"),
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
    assert said in metrics.verdict(row, actors)
