"""Rank 0's progress lines and when it prints them; tests/test_processes.py tests whole runs."""

import types

from impala_mm.learner import monitor


def test_the_first_frames_are_said_as_they_come_also_after_a_line_of_none(monkeypatch):
    said, learner = [], types.SimpleNamespace(frames=0, updates=0, actions=None)
    monkeypatch.setattr(monitor, "progress_line", lambda row, _: f"{row['frames']} frames")
    watching = types.SimpleNamespace(
        _learner=learner,
        _eta=None,
        _has_received=False,
        _first_unroll=types.SimpleNamespace(describe=lambda *counts: f"waits {counts}"),
        _num_actors=lambda: 2,
        _gave_up=lambda: {7: "no map"},
        _say=said.append,
        _write_row=lambda _: {"frames": learner.frames},
    )
    clocks = monitor._Timers(save_seconds=600, frames=0)

    def keep():
        monitor.LearnerMonitor._keep_records(
            watching, types.SimpleNamespace(metrics_writer=None), clocks
        )

    keep()
    assert said == [], "nothing is due yet"
    clocks.row.retry()
    clocks.line.retry()
    keep()
    assert said == ["waits (2, 1)"]
    watching._has_received = True
    for learner.frames in (0, 288, 576):
        keep()
    assert said[1:] == ["288 frames"]
