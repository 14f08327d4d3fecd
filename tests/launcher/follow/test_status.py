"""Tests of a run's status, read from the files of its supervisors: as JSON and as a table."""

import dataclasses
import json
import os
import subprocess
import time

import pytest
from rich.console import Console

from launcher.checks.check import Finding
from launcher.checks.preflight import show_findings
from launcher.follow import status
from launcher.follow.console import say
from launcher.follow.follow import failure_message
from launcher.supervise.errors import LauncherError
from launcher.supervise.procfs import start_time
from launcher.supervise.run_registry import (
    Record,
    Run,
    RunInUse,
    UnreadableRecord,
    boot_id,
    run_names,
)

ME = [os.getpid(), start_time(os.getpid())]
GONE = [ME[0], ME[1] + 1]  # another process had this pid


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Run("night-1")


def _write(run, logdir, *states, since=60.0, booted=None):
    """Write the states of a run's processes, as if this process were all their supervisors."""
    run.create_state()
    logdir.mkdir(exist_ok=True)
    processes, born = [], time.time() - since
    for state in states:
        known = {"job": "actor", "host": "localhost", "supervisor": ME, "restarts": 0} | state
        processes.append({"name": known["name"], "job": known["job"], "host": known["host"]})
        (run.folder / known["name"]).mkdir()
        if "state" not in known:
            (run.folder / known["name"] / "task.json").write_text("{}")
            os.utime(run.folder / known["name"] / "task.json", (born, born))
        else:
            (run.folder / known["name"] / "state.json").write_text(json.dumps(known))
    booted = booted or boot_id()
    told = (run.name, "1", born, booted, str(logdir), "", processes, {}, [], len(processes))
    run.write_record(Record(*told))


def _table(run, rows=20, width=150):
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(status.picture(status.snapshot(run), rows, console))
    return console.export_text()


LEARNERS = {"name": "learners", "job": "learner", "state": "running", "since": time.time() - 50}


def test_the_age_of_a_process_is_by_the_clock_of_its_host_which_differs_from_ours(run, tmp_path):
    there = time.time() + 600
    _write(run, tmp_path, LEARNERS | {"since": there - 50, "time": there})
    assert status.snapshot(run)["processes"][0]["up"] == 50


def test_what_processes_print_cannot_control_the_terminal(run, tmp_path):
    printed = "\x1b[33mWARN: slow\x1b[0m\x1b[2J\x07"
    actor = {"name": "actor-0", "host": "gpu\x1b[1m", "state": "waits", "last": printed}
    failure = {"why": "it exited with code 1", "lines": [printed], "next": "it is restarted"}
    _write(run, tmp_path / "a", LEARNERS, actor | {"failure": failure, "log": "/a/log"})
    table = _table(run)
    state = run.states()["actor-0"]
    message = failure_message(state, state.failure, 1)
    assert r"WARN: slow\x1b[2J\x07" in table
    assert r"    WARN: slow\x1b[2J\x07" in message.splitlines()
    assert "\x1b" not in table
    assert r"gpu\x1b[1m" in table


def test_messages_of_the_frontend_cannot_control_the_terminal(capsys):
    say("gpu1: could not start Python on the host: \x1b]0;title\x07\nsecond line")
    show_findings([Finding(False, "it prints \x1b[2J", "remedy", "ssh", "gpu\x07")])
    printed = capsys.readouterr().out
    assert r"on the host: \x1b]0;title\x07" in printed
    assert r"FAILED  ssh  gpu\x07: it prints \x1b[2J" in printed
    assert not {"\x1b", "\x07"} & set(printed)


def test_the_headline_shows_the_last_row_of_this_start(run, tmp_path):
    _write(run, tmp_path / "a", LEARNERS)
    rows = tmp_path / "a" / "metrics.jsonl"
    row = {"frames": 1_234_567.0, "frames_per_second": 8765.4, "policy_lag": 2.55}
    row |= {"episode_return": 20.5, "verdict": "the actors bind"}
    rows.write_text('{"frames": 1.0}\n' + json.dumps(row | {"loss/total": 3.0}) + "\n")
    known = status.snapshot(run)
    assert {name: known[name] for name in row} == row
    assert "loss/total" not in known
    table = _table(run)
    assert "| 1,234,567 frames | 8,765/s | return 20.50 | lag 2.5" in table
    assert "the actors bind" in table
    with rows.open("a") as file:
        file.write('{"frames": 2')  # an incomplete row
    assert status.snapshot(run)["frames"] == 1_234_567.0
    rows.write_text(json.dumps(row) + "\n")
    os.utime(rows, (0, 0))
    assert "frames" not in status.snapshot(run), "the row is of an earlier start"


def test_failing_processes_come_first_if_not_all_fit(run, tmp_path):
    actors = [
        {"name": f"actor-{i}", "state": "running", "since": time.time() - 200} for i in range(9)
    ]
    actors[3] |= {
        "cpu": 93,
        "memory": 2048,
        "frames_per_second": 1500.4,
        "last": "[actor 3] joined",
    }
    actors[7] |= {"state": "waits", "restarts": 4, "last": "it will be restarted in 4 s"}
    _write(run, tmp_path, LEARNERS | {"last": "a long line " * 40}, *actors)
    table = _table(run)
    cells = [" ".join(line.split()) for line in table.splitlines()]
    assert "actor-3 localhost running 3 min 1,500 93% 2,048 MiB 0 [actor 3] joined" in cells
    few = _table(run, rows=3)
    assert few.splitlines()[3].startswith("actor-7")
    assert "actor-8" not in few
    assert "and 7 more" in few


def test_a_process_without_its_supervisor_is_lost_and_a_new_one_is_starting(run, tmp_path):
    gone = {"name": "actor-0", "state": "running", "supervisor": GONE}
    ended = {"name": "actor-1", "state": "stopped", "supervisor": GONE, "code": 0}
    new = {"name": "actor-2"}
    _write(run, tmp_path, LEARNERS, gone, ended, new, since=5.0)
    found = [process["state"] for process in status.snapshot(run)["processes"]]
    assert found == ["running", "lost", "stopped", "starting"]
    assert run.is_running()
    other = Run("other")
    _write(other, tmp_path, gone | {"name": "learners"}, new, since=100.0)
    assert [process["state"] for process in status.snapshot(other)["processes"]] == ["lost", "lost"]
    assert not other.is_running()
    assert status.snapshot(other)["state"] == "lost"


@pytest.mark.parametrize(
    ("learners", "actor", "whole"),
    [
        ("running", "running", "running"),
        ("saving", "running", "saving"),
        ("ended", "running", "ending"),
        ("ended", "stopped", "ended"),
        ("failed", "stopped", "failed"),
    ],
)
def test_a_run_has_the_state_of_its_learners_until_all_have_ended(
    run, tmp_path, learners, actor, whole
):
    _write(run, tmp_path, LEARNERS | {"state": learners}, {"name": "actor-0", "state": actor})
    assert status.snapshot(run)["state"] == whole


def test_a_run_from_before_a_reboot_is_stale_unless_it_is_another_machines(run, tmp_path):
    _write(run, tmp_path, LEARNERS, booted="another")
    assert status.snapshot(run)["state"] == "stale"
    assert not run.is_running()
    record = run.record
    run.write_record(dataclasses.replace(record, started_from="desk1"))
    assert status.snapshot(run)["state"] == "elsewhere"
    assert "started on another machine" in _table(run)
    run.write_record(dataclasses.replace(record, started_from="desk1", boot=boot_id()))
    assert status.snapshot(run)["state"] == "running", "this machine got another name"
    run.write_record(record)
    run.create_state()
    assert run.record is None, "the name is free"


def test_a_running_run_keeps_its_name_and_one_frontend_changes_it_at_a_time(run, tmp_path):
    _write(run, tmp_path, LEARNERS)
    with pytest.raises(RunInUse, match="night-1 is running"):
        run.create_state()
    assert run_names() == ["night-1"]
    with run.locked(), pytest.raises(RunInUse, match="another frontend"), Run("night-1").locked():
        pass
    with run.locked():
        pass


def test_gpus_are_shown_if_the_driver_lists_some(run, tmp_path, monkeypatch):
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(
        "#!/bin/sh\n"
        'case "$1" in --query-gpu=index,name,utilization.gpu,memory.used,memory.total) '
        "echo '0, NVIDIA H100, 87, 1234, 81559'; echo '1, NVIDIA H100, 0, 4, 81559';; esac\n"
    )
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    _write(run, tmp_path / "a", LEARNERS)
    table = _table(run)
    assert "GPU 0 (NVIDIA H100): 87% busy, 1234 of 81559 MiB used" in table
    assert "GPU 1 (NVIDIA H100): 0% busy" in table


@pytest.mark.parametrize("content", ['{"name": "night-1", "pids": [1]}', ""])
def test_an_unreadable_record_is_reported_and_its_name_is_not_free(run, tmp_path, content):
    _write(run, tmp_path, LEARNERS)
    (run.folder / "run.json").write_text(content)
    for ask in (lambda: status.snapshot(run), run.create_state):
        with pytest.raises(UnreadableRecord, match=f"{run.folder}/run.json cannot be read"):
            ask()
    ended = LEARNERS | {"supervisor": GONE}
    (run.folder / "learners" / "state.json").write_text(json.dumps(ended))
    run.create_state()
    assert run.record is None, "no process of it is running, so its name is free"


@pytest.fixture
def sleeping():
    """Return a function that starts `sleep` with more variables in its environment."""
    started_here = []

    def start(**more):
        started_here.append(subprocess.Popen(["sleep", "60"], env=os.environ | more))
        return started_here[-1]

    yield start
    for process in started_here:
        process.kill()
        process.wait()


def test_only_the_processes_of_a_lost_supervisor_are_killed(run, tmp_path, sleeping):
    """A process that has got the pid of a recorded one is not killed."""
    mine, other, bystander = sleeping(), sleeping(), sleeping()
    grandchild = sleeping(IMPALA_MM_HEARTBEAT=f"{run.folder}/actor-0/beat")
    gone = {"state": "running", "supervisor": GONE}
    left = {"name": "actor-0", "process": [mine.pid, start_time(mine.pid)]} | gone
    reused = {"name": "actor-1", "process": [other.pid, start_time(other.pid) - 1]} | gone
    _write(run, tmp_path, LEARNERS | gone, left, reused)
    assert run.is_running(), "its process is running"
    assert run.kill(lost_only=True) == 2
    assert (mine.wait(5), grandchild.wait(5)) == (-9, -9)
    assert (other.poll(), bystander.poll()) == (None, None)
    assert not run.is_running()


def test_the_state_of_a_run_is_private_to_its_owner(run, tmp_path):
    _write(run, tmp_path, LEARNERS)
    assert run.folder.stat().st_mode & 0o777 == 0o700
    for name in ("run.json", "token"):
        assert (run.folder / name).stat().st_mode & 0o777 == 0o600
    assert len((run.folder / "token").read_text()) == 64


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "a.b", "a:b", "x" * 65])
def test_names_that_folders_and_tmux_could_not_have_are_refused(name):
    with pytest.raises(LauncherError, match="is not a valid name"):
        Run(name)


def test_a_run_that_another_terminal_ends_is_shown_no_more(run, tmp_path, capsys):
    _write(run, tmp_path, LEARNERS)
    assert status.run_state(run) == "running"
    run.forget()
    assert (status.snapshot(run), status.run_state(run)) == ({}, "")
    status.show_status(run, as_json=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (30, "process state"),
        (80, "process host state uptime frames/s CPU restarts"),
        (200, "process host state uptime frames/s CPU memory restarts last log line"),
    ],
)
def test_a_narrow_table_leaves_columns_out_and_shortens_no_name_and_no_state(
    run, tmp_path, width, columns
):
    actor = {
        "name": "actor-0",
        "state": "running",
        "cpu": 93,
        "memory": 2048,
        "last": "jöined 日本",
    }
    waits = {"name": "actor-1", "state": "waits", "restarts": 4, "last": "in 4 s"}
    _write(run, tmp_path, LEARNERS | {"last": "long " * 60}, actor, waits)
    table = _table(run, width=width).splitlines()
    assert all(len(line) <= width for line in table)
    rows = [" ".join(line.split()) for line in table]
    assert columns in rows
    assert any(row.startswith("learners") and "running" in row for row in rows)
    assert any(row.startswith("actor-1") and "waiting to restart" in row for row in rows)


def test_the_verdict_of_an_unreachable_learners_host_is_not_its_last_one(run, tmp_path):
    _write(run, tmp_path / "a", LEARNERS)
    row = {"frames": 8.0, "frames_per_second": 2.0, "verdict": "balanced: all keep pace"}
    (tmp_path / "a" / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    assert "balanced: all keep pace" in _table(run)
    away = LEARNERS | {"host": "10.1.1.1", "supervisor": ME, "state": "away"}
    (run.folder / "learners" / "state.json").write_text(json.dumps(away))
    table = _table(run)
    assert "the learners' host 10.1.1.1 is unreachable" in table
    assert "keep pace" not in table


@pytest.mark.parametrize(
    ("state", "verdict", "shown"),
    [
        ("ended", "ended: the mean return reached 475", "ended: the mean return reached 475"),
        ("stopped", "bottleneck: actors (...)", "ended"),
        ("failed", "bottleneck: actors (...)", "failed: learners exited with code 1"),
    ],
)
def test_a_run_that_is_over_says_how_and_names_no_bottleneck(run, tmp_path, state, verdict, shown):
    failure = {"time": 1.0, "code": 1, "why": "exited with code 1"} if state == "failed" else None
    _write(run, tmp_path, LEARNERS | {"state": state, "failure": failure})
    row = {"frames": 9.0, "frames_per_second": 1.0, "verdict": verdict}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert status.snapshot(run)["verdict"] == shown
