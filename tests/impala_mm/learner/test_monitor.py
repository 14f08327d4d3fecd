"""Rank 0's progress lines and when it prints them; tests/test_processes.py tests whole runs."""

import time
import types

import pytest
import tensorflow as tf

from impala_mm.learner import monitor, row_writer
from impala_mm.learner.watching import FirstUnroll, StallReports


def test_the_first_frames_are_said_as_they_come_also_after_a_line_of_none(monkeypatch):
    said, called = [], []
    learner = types.SimpleNamespace(
        **{"frames": 0, "updates": 0, "actions": None, "offline_left": 0, "offline_planned": 0},
        limits=types.SimpleNamespace(frames=1e9, seconds=1e9),
    )
    status = types.SimpleNamespace(
        learner=learner, has_received=False, num_actors=int, gave_up=dict, say=said.append
    )
    hook = types.SimpleNamespace(call=lambda *event: called.append(event))
    monkeypatch.setattr(row_writer, "progress_line", lambda row, _: f"{row['frames']} frames")
    rows = row_writer.RowWriter(status, None, lambda: "a note")
    row = {"verdict": row_writer.UNKNOWN}
    monkeypatch.setattr(rows, "write", lambda: row | {"frames": learner.frames})
    waiting = FirstUnroll(status)
    monkeypatch.setattr(waiting, "describe", lambda: "waits")
    stalls = StallReports(status, waiting, hook)

    def look():
        now = time.monotonic()
        rows.look(now)
        waiting.say_due_line()
        stalls.look(now)

    look()
    assert said == [], "nothing is due yet"
    waiting._began -= 6
    look()
    assert said == ["waits"]
    stalls._since = -1e9
    look()
    assert said == ["waits"], "a stall prints nothing while the run waits for its first unroll"
    assert called == [("stall", "waits")]
    status.has_received = True
    rows._row.retry()
    for learner.updates in (0, 1, 2):
        learner.frames = 288 * learner.updates
        look()
    assert said[1:] == ["288 frames", "a note"], "each is printed once"


def test_a_stall_is_told_once_until_updates_come_again():
    status = types.SimpleNamespace(learner=types.SimpleNamespace())
    waiting = types.SimpleNamespace(is_awaited=True, describe=lambda: "waits")
    told = []
    hook = types.SimpleNamespace(call=lambda *_: told.append((status.learner.updates, now)))
    stalls = StallReports(status, waiting, hook)
    times = [
        *((0, 0.0), (0, 59.0), (3, 59.5), (5, 110.0), (5, 169.0), (5, 170.0), (5, 300.0)),
        *((6, 310.0), (7, 339.0), (7, 398.0), (7, 400.0), (7, 500.0)),
    ]
    for status.learner.updates, now in times:
        stalls.look(now)
    assert told == [(5, 170.0), (7, 400.0)]


class HorovodInternalError(RuntimeError):
    """As Horovod raises it."""


_LOST = "another learner is unreachable"


def _end(of_training=None):
    """Return why the run ends, when this exception has ended the training."""
    status = types.SimpleNamespace(
        endless="", other_learners_failure=lambda: "", reported_at=time.monotonic()
    )
    learner = types.SimpleNamespace(join=lambda seconds: None, failure=of_training)
    exchange = types.SimpleNamespace(failure=None, finish=lambda seconds, goes_on: False)
    watching = types.SimpleNamespace(_learner=learner, status=status)
    return monitor.LearnerMonitor._wait_for_all_to_end(watching, exchange)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (tf.errors.UnknownError(None, None, "HorovodAllreduce: connection closed"), _LOST),
        (HorovodInternalError("connection closed"), _LOST),
        (ValueError("Horovod does not work within XLA"), ""),
    ],
)
def test_a_learner_is_lost_if_horovod_says_so_and_not_if_a_users_error_names_it(failure, why):
    lost = _end(of_training=failure)
    assert lost == why
    watching = types.SimpleNamespace(_learner=types.SimpleNamespace(failure=None))
    with pytest.raises(monitor.LearnerLost if why else ValueError):  # an error of the reports
        monitor.LearnerMonitor._raise_failure(watching, _LOST, failure)


@pytest.mark.parametrize(
    ("silent", "failure", "others", "updating", "waits"),
    [
        (1.0, None, "", False, True),
        (60.0, None, "", False, False),
        (1.0, ValueError("x"), "", False, False),
        (1.0, None, "learner 1: x", False, False),
        (1.0, None, "", True, False),
    ],
)
def test_learners_wait_for_one_that_may_be_saving_and_for_none_that_hangs(
    silent, failure, others, updating, waits
):
    status = types.SimpleNamespace(
        reported_at=time.monotonic() - silent, other_learners_failure=lambda: others
    )
    lock = types.SimpleNamespace(locked=lambda: updating)
    learner = types.SimpleNamespace(failure=failure, variables_lock=lock)
    watching = types.SimpleNamespace(
        _learner=learner, status=status, _beat=types.SimpleNamespace(look=lambda now: None)
    )
    assert monitor.LearnerMonitor._may_be_saving(watching) == waits
