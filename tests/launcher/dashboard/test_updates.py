"""What pages are told, and that neither pages nor runs accumulate."""

import json
import shutil

import pytest
from large_run import LargeRun

from launcher.dashboard import run_finder, updates
from launcher.dashboard.updates import TooManyPages, Updates
from launcher.node import foreground_states


@pytest.fixture
def large(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = LargeRun("night", tmp_path / "runs" / "pong", actors=5, hosts=2)
    run.write_rows(1, 20)
    return run


def _told(page):
    found = []
    while not page._messages.empty():
        event, _, data = page._messages.get().partition("\n")
        found.append((event.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def _open(all_runs, key):
    next(iterator := all_runs.open_page(key))
    return all_runs._pages[-1], iterator


def test_a_page_is_told_everything_once_and_then_what_has_changed(large, tmp_path):
    all_runs = Updates(tmp_path / "runs")
    (key,) = all_runs.find()
    page, _ = _open(all_runs, key)
    all_runs._look()
    first = dict(_told(page))
    assert len(first["processes"]["changed"]) == 6
    assert "rows" not in first, "the page fetches the history"
    large.write_rows(20, 22)
    large.write_state("actor-2", restarts=1)
    all_runs._look()
    second = dict(_told(page))
    assert [row["frames"] for row in second["rows"]] == [large.row(i)["frames"] for i in (20, 21)]
    assert [p["name"] for p in second["processes"]["changed"]] == ["actor-2"]
    assert "runs" not in second, "the list is looked through less often"
    late, _ = _open(all_runs, key)
    all_runs._look()
    assert len(dict(_told(late))["processes"]["changed"]) == 6


def test_a_page_that_reads_nothing_is_dropped_and_pages_are_few(large, tmp_path):
    all_runs = Updates(tmp_path / "runs")
    (key,) = all_runs.find()
    _, iterator = _open(all_runs, key)
    for i in range(updates._MOST_MESSAGES):
        large.write_rows(20 + i, 21 + i)
        all_runs._look()
    assert all_runs._pages == []
    assert list(iterator) == [], "its connection ends"
    opened = [_open(all_runs, "") for _ in range(updates._MOST_PAGES)]
    assert len(all_runs._pages) == len(opened)
    with pytest.raises(TooManyPages, match="32 pages are open already: close one"):
        all_runs.open_page("")


def test_a_page_that_is_closed_is_forgotten(large, tmp_path):
    all_runs = Updates(tmp_path / "runs")
    _, iterator = _open(all_runs, "")
    iterator.close()
    assert all_runs._pages == []


def test_folders_that_no_page_shows_any_more_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for i in range(9):
        (folder := tmp_path / "runs" / f"run-{i}").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"frames": 1.0, "seconds": 1.0}\n')
    all_runs = Updates(tmp_path / "runs")
    for key in all_runs.find():
        assert all_runs.with_run(key, lambda w: w.status["state"]) == "ended"
    assert len(all_runs._watched) == 9
    all_runs._look()
    assert len(all_runs._watched) == updates._MOST_WATCHED


def test_runs_in_the_foreground_of_a_terminal_are_found_with_their_processes(
    large, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (logdir := tmp_path / "elsewhere" / "run").mkdir(parents=True)
    state_folder = tmp_path / f"{foreground_states.folder_prefix()}x"
    state_folder.mkdir()
    foreground_states.write_logdir(state_folder, logdir)
    for name in ("actor-10", "learners", "actor-9"):
        (state_folder / name).mkdir()
        (state_folder / name / "state.json").write_bytes(
            (large.run.folder / large.names[name != "learners"] / "state.json").read_bytes()
        )
    all_runs = Updates(tmp_path / "runs")
    (key,) = (key for key, run in all_runs.find().items() if run.logdir == logdir)
    known = all_runs.with_run(key, lambda w: w.status)
    assert known["state"] == "running"
    assert [p["job"] for p in known["processes"]] == ["learner", "actor", "actor"]
    assert list(foreground_states.read_states(state_folder)) == ["learners", "actor-9", "actor-10"]


def test_a_run_that_was_stopped_is_shown_as_its_folder_until_that_is_removed(
    large, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_finder, "_PERIOD_SECONDS", -1.0)
    all_runs = Updates(tmp_path / "elsewhere")
    (before,) = all_runs.find().values()
    large.run.forget()
    (after,) = all_runs.find().values()
    assert (after.key, after.name, after.has_states) == (before.key, "night", False)
    shutil.rmtree(large.logdir)
    assert all_runs.find() == {}


def test_a_folder_that_is_a_run_is_shown_alone(large):
    all_runs = Updates(large.logdir)
    assert [run.name for run in all_runs.find().values()] == ["night"]
