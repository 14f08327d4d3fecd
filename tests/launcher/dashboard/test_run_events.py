"""The events of a run, from its records, from logs, and from changes of states."""

import json
import os
import time

import pytest

from launcher.dashboard.row_history import RowHistory
from launcher.dashboard.run_events import RunEvents, stamped_lines
from launcher.dashboard.run_finder import FoundRun


def _process(name="actor-0", state="running", failure=None):
    known = {"name": name, "host": "b", "job": "actor", "log": ""}
    return known | {"state": state, "failure": failure}


def _failed(at, why="it was killed by SIGKILL"):
    return {"time": at, "why": why, "next": "it will be restarted in 0.5 s"}


@pytest.fixture
def folder(tmp_path):
    """Write a run that started 1,000 s ago and trains at 10 frames/s since 100 s later."""
    rows = [{"frames": 10.0 * i, "seconds": float(i)} for i in range(0, 901, 100)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    began = time.time() - 1000
    start = {"time": began, "frames": 0.0, "host": "a"}
    (tmp_path / "starts.jsonl").write_text(json.dumps(start) + "\n")
    path = tmp_path / "checkpoints" / "0000000040"
    path.mkdir(parents=True)
    about = {"updates": 40, "frames": 4000.0, "seconds": 400.0, "episode_return": 3.0}
    (path / "about.json").write_text(json.dumps(about))
    os.utime(path / "about.json", (began + 500, began + 500))
    test = {"time": began + 600, "frames": 4000.0, "returns": [1, 2], "level": "x"}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(test) + "\n" + '{"time": 5}\n')
    return tmp_path


def _events(folder, *looks):
    history = RowHistory(folder / "metrics.jsonl")
    history.read()
    events = RunEvents(FoundRun("k", "n", folder), history)
    for processes in looks:
        events.update({"processes": processes})
    return events.list_events()


def test_the_records_of_the_folder_are_events_in_their_order(folder):
    found = [(e["kind"], e["text"], e["frames"], e["seconds"]) for e in _events(folder, [])]
    assert found == [
        ("start", "started on a", 0.0, 0.0),
        ("checkpoint", "checkpoint 40, mean return 3.00 (the best)", 4000.0, 400.0),
        ("test", "test: mean return 1.50 of 2 games", 4000.0, 400.0),
    ]


def test_a_failure_lies_at_the_training_time_at_which_it_happened(folder):
    failure = _failed(time.time() - 300)  # 600 s of training were over then
    *_, event = _events(folder, [_process(failure=failure)])
    assert event["kind"] == "failure"
    assert event["text"].startswith("actor-0 on b failed: it was killed by SIGKILL; ")
    assert event["seconds"] == pytest.approx(600, abs=2)
    assert event["frames"] == pytest.approx(6000, abs=20)


def test_an_event_stays_where_it_is_although_rows_follow(folder):
    history = RowHistory(folder / "metrics.jsonl")
    history.read()
    events = RunEvents(FoundRun("k", "n", folder), history)
    events.update({"processes": [_process(failure=_failed(time.time() - 300))]})
    before = events.list_events()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 9990.0, "seconds": 930.0}\n')
    history.read()
    assert events.list_events() == before


def test_a_failure_is_one_event_although_the_log_and_many_looks_tell_of_it(folder):
    at = time.time() - 60
    stamp = time.strftime("%H:%M:%S", time.localtime(at))
    line = "it was killed by SIGKILL; it will be restarted in 0.5 s"
    (folder / "actor-0.log").write_text(f"text\n{stamp} {line}\n{stamp} note: nothing\n")
    look = [_process(failure=_failed(at))]
    failures = [e for e in _events(folder, look, look) if e["kind"] == "failure"]
    assert [e["text"] for e in failures] == [f"actor-0: {line}"]
    later = [_process(failure=_failed(at + 50))]
    failures = [e for e in _events(folder, look, look, later) if e["kind"] == "failure"]
    assert len(failures) == 2


def test_a_host_that_is_cut_off_and_comes_back_is_two_events_whatever_runs_there(folder):
    there, away = ([_process(f"actor-{i}", s) for i in (0, 1)] for s in ("running", "away"))
    cuts = [e["text"] for e in _events(folder, there, away, away, there) if e["kind"] == "cut"]
    assert cuts == ["b is unreachable", "b is reachable again"]


def test_records_that_are_damaged_are_left_out(folder):
    (folder / "starts.jsonl").write_text(
        '{"time": "soon", "frames": 1}\n{"time": 5, "frames": []}\n'
        f'{{"time": 1{"0" * 400}, "frames": 1}}\n'
    )
    (folder / "checkpoints" / "0000000040" / "about.json").write_text(
        f'{{"frames": 1{"0" * 400}, "seconds": 1}}'
    )
    (folder / "evaluations.jsonl").write_text('{"time": 5, "frames": 1, "returns": [null]}\n')
    assert _events(folder, []) == []


def test_lines_of_a_day_that_is_over_have_its_date(tmp_path):
    log, day = tmp_path / "x.log", 86400
    lines = ["23:59:58 a", "plain 10:00:00", "00:00:03 b", "99:00:00 c", "23:59:00 d", "00:01:00 e"]
    log.write_text("\n".join(lines) + "\n")
    ended = time.mktime((2026, 3, 10, 0, 1, 0, 0, 0, -1))
    os.utime(log, (ended, ended))
    assert [(text, round(at - ended)) for at, text in stamped_lines(log)] == [
        ("a", -day - 62),
        ("b", -day - 57),
        ("d", -120),
        ("e", 0),
    ]
