"""What pages are told, and that neither pages nor runs accumulate."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from large_run import ME, LargeRun
from run_states import record_foreground

from launcher.dashboard import run_finder, updates, watched_run
from launcher.dashboard.updates import TooManyPages, Updates
from launcher.supervise.run_registry import foreground_prefix, foreground_runs


@pytest.fixture
def large(tmp_path):
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
    assert not {"rows", "hosts"} & first.keys(), "the page fetches the history"
    large.write_rows(20, 22)
    large.write_hosts(2, 3)
    large.write_state("actor-2", restarts=1)
    all_runs._look()
    second = dict(_told(page))
    assert [row["frames"] for row in second["rows"]] == [large.row(i)["frames"] for i in (20, 21)]
    assert second["hosts"] == [large.hosts_row(2)]
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
    opened.pop()[1].close()
    assert len(all_runs._pages) == len(opened), "a page that is closed is forgotten"
    opened.append(_open(all_runs, ""))
    with pytest.raises(TooManyPages, match="32 pages are open already"):
        all_runs.open_page("")


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


def test_runs_in_the_foreground_of_a_terminal_are_found_with_their_processes(large, tmp_path):
    (logdir := tmp_path / "elsewhere" / "run").mkdir(parents=True)
    state_folder = tmp_path / f"{foreground_prefix()}x"
    record_foreground(state_folder, logdir, ("learners", "actor-9", "actor-10"))
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


def test_a_run_that_was_stopped_is_shown_as_its_folder_until_that_is_removed(
    large, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_finder, "_PERIOD_SECONDS", -1.0)
    all_runs = Updates(tmp_path / "elsewhere")
    (before,) = all_runs.find().values()
    large.run.forget()
    (after,) = all_runs.find().values()
    assert (after.key, after.name, after.run) == (before.key, "night", None)
    shutil.rmtree(large.logdir)
    assert all_runs.find() == {}


def test_a_folder_that_is_a_run_is_shown_alone(large):
    all_runs = Updates(large.logdir)
    assert [run.name for run in all_runs.find().values()] == ["night"]


def test_a_run_that_cannot_be_read_says_so_and_others_are_shown(
    large, tmp_path, monkeypatch, capfd
):
    (bad := tmp_path / "runs" / "bad").mkdir()
    (bad / "metrics.jsonl").write_text('{"frames": 1.0, "seconds": 1.0}\n')
    all_runs = Updates(tmp_path / "runs")
    keys = {run.name: key for key, run in all_runs.find().items()}
    opened = {name: _open(all_runs, key) for name, key in keys.items()}
    pages = {name: page for name, (page, _) in opened.items()}
    read_status = watched_run.read_status

    def fails(found):
        if found.name == "bad":
            raise OverflowError("too large")
        return read_status(found)

    monkeypatch.setattr(watched_run, "read_status", fails)
    for _ in range(2):
        all_runs._look()
    assert dict(_told(pages["night"]))["about"]["status"]["state"] == "running"
    told = dict(_told(pages["bad"]))
    assert told["about"]["status"]["state"] == "unreadable"
    assert told["about"]["status"]["failure"] == "OverflowError: too large"
    assert {run["name"]: run["state"] for run in told["runs"]}["bad"] == "unreadable"
    assert capfd.readouterr().err.count("bad cannot be read: OverflowError: too large") == 1
    monkeypatch.setattr(watched_run, "read_status", read_status)
    all_runs._look()
    assert dict(_told(pages["bad"]))["about"]["status"]["state"] == "ended"


def test_the_thread_outlives_an_error_and_pages_hear_of_it_alone_that_it_lives(
    large, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(updates, "PERIOD_SECONDS", 0.01)
    all_runs = Updates(tmp_path / "runs")
    page, iterator = _open(all_runs, "")
    assert next(iterator) == ":\n\n", "a connection in itself is no sign of life"
    looks = [PermissionError("no"), PermissionError("no"), KeyboardInterrupt()]
    monkeypatch.setattr(all_runs, "_look", lambda: (_ for _ in ()).throw(looks.pop(0)))
    with pytest.raises(KeyboardInterrupt):
        all_runs._loop()
    assert capfd.readouterr().err == ("[dashboard] the runs cannot be read: PermissionError: no\n")
    monkeypatch.undo()
    all_runs._listed = time.monotonic()
    all_runs._look()
    assert _told(page) == [("beat", {})]


def test_videos_keep_their_keys_and_those_that_are_gone_are_left_out(large, tmp_path):
    (videos := large.logdir / "videos").mkdir()
    (videos / "gone.mp4").symlink_to(tmp_path / "nowhere")
    (videos / "b.mp4").touch()
    record = {"video": f"{'x' * 300}.mp4"}
    (large.logdir / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
    all_runs = Updates(tmp_path / "runs")
    (key,) = all_runs.find()
    (before,) = all_runs.with_run(key, lambda w: w.describe_events())["videos"]
    (videos / "a.mp4").touch()
    found = all_runs.with_run(key, lambda w: w.describe_events())["videos"]
    assert [video["name"] for video in found] == ["a", "b"]
    assert found[1] == before


def test_a_folder_that_cannot_be_read_hides_no_other_run(large, tmp_path, monkeypatch):
    runs, stat = tmp_path / "runs", os.stat
    (runs / "loop").symlink_to("loop")
    (runs / "closed").mkdir()

    def refuses(path, **more):
        if "closed/" in os.fsdecode(path):
            raise PermissionError(13, "Permission denied")
        return stat(path, **more)

    (runs / "other").mkdir()
    (runs / "other" / "metrics.jsonl").touch()
    monkeypatch.setattr(os, "stat", refuses)
    assert {run.name for run in Updates(runs).find().values()} == {"night", "other"}


def test_the_failures_of_a_run_are_shown_after_its_end(large, tmp_path, monkeypatch):
    monkeypatch.setattr(run_finder, "_PERIOD_SECONDS", -1.0)
    monkeypatch.setattr(updates, "PERIOD_SECONDS", -1.0)
    all_runs = Updates(tmp_path / "runs")
    all_runs._look()
    failure = {"time": time.time(), "code": 1, "why": "it had no memory", "lines": [], "next": "-"}
    large.write_state("actor-1", failure=failure)
    (key,) = all_runs.find()
    events = all_runs.with_run(key, lambda w: w.describe_events())["events"]
    assert [e["kind"] for e in events] == ["start", "failure"]
    large.run.forget()
    all_runs._look()
    assert all_runs._watched[key].status["state"] == "ended", "although no page shows it"
    assert all_runs.with_run(key, lambda w: w.describe_events())["events"] == events


def test_the_failures_of_a_run_that_had_ended_before_are_in_the_logs_of_its_folder(tmp_path):
    (folder := tmp_path / "runs" / "old").mkdir(parents=True)
    (folder / "metrics.jsonl").touch()
    why = "it was killed by SIGKILL; it will be restarted in 0.5 s"
    (folder / "actor-7.log").write_text(f"00:00:00 {why}\n")
    all_runs = Updates(tmp_path / "runs")
    (key,) = all_runs.find()
    (event,) = all_runs.with_run(key, lambda w: w.describe_events())["events"]
    assert (event["kind"], event["text"]) == ("failure", f"actor-7: {why}")


def test_a_run_in_a_folder_of_the_root_has_a_name(monkeypatch):
    monkeypatch.setattr(run_finder, "_MARKS", ("passwd",))
    assert "etc" in {run.name for run in run_finder.RunFinder(Path("/etc")).find().values()}


def test_a_run_that_was_killed_does_not_hide_the_next_one_in_its_folder(large, tmp_path):
    logdir = tmp_path / "run"
    paths = [tmp_path / f"{foreground_prefix()}{i}" for i in range(3)]
    runs = [record_foreground(path, logdir, began=i) for i, path in enumerate(paths)]
    assert foreground_runs()[-1] == runs[2], "the newest"
    for run, supervisor in ((runs[0], ME), (runs[1], [1, 1])):
        large.write_state("learners", supervisor=supervisor, process=supervisor)
        shutil.copytree(large.run.folder / "learners", run.folder / "learners")
    assert foreground_runs()[-1] == runs[0], "the one that lives"
    shutil.rmtree(runs[0].folder)
    (runs[2].folder / "learners").mkdir()
    (runs[2].folder / "learners" / "task.json").touch()
    assert foreground_runs()[-1] == runs[2], "it is starting"


def test_nothing_is_read_in_folders_of_other_users(tmp_path, monkeypatch, large):
    folder = tmp_path / f"{foreground_prefix()}x"
    folder.mkdir()
    os.mkfifo(folder / "run.json")  # to read it would last for ever
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert foreground_runs() == []


def test_the_trials_of_an_experiment_are_runs_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("sweep/trials/000", "sweep/trials/001", "alone"):
        (folder := tmp_path / "runs" / name).mkdir(parents=True)
        (folder / "metrics.jsonl").touch()
    (tmp_path / "runs" / "sweep" / "experiment.jsonl").touch()
    names = {run.name for run in Updates(tmp_path / "runs").find().values()}
    assert names == {"sweep-000", "sweep-001", "alone"}
    names = {run.name for run in Updates(tmp_path / "runs" / "sweep").find().values()}
    assert names == {"sweep-000", "sweep-001"}
