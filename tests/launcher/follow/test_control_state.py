"""What frontends read of a run's controller, and which of them recovers the run."""

import os
import subprocess
import sys
import threading
import time

import pytest
from supervising import until

from launcher.follow import controller
from launcher.follow.followed_run import FollowedRun
from launcher.supervise import procfs
from launcher.supervise.json_files import write_json
from launcher.supervise.run_registry import Run, RunInUse, boot_id

ME = [os.getpid(), procfs.start_time(os.getpid())]


@pytest.fixture
def run(tmp_path):
    made = Run("impala", tmp_path)
    (made.folder / "seen").mkdir(parents=True)
    return made


def _report(run, silent=0.0, **changes):
    known = {"process": ME, "boot": boot_id(), "host": "laptop", "since": time.time() - 60}
    known |= {"command": ["command"], "folder": "/", "log": "/l", "beat": 0.0}
    path = run.folder / controller.STATE_FILE
    write_json(path, known | changes)
    os.utime(path, (time.time() - silent,) * 2)
    return controller.read(run)


@pytest.mark.parametrize(
    ("changes", "missing", "said"),
    [
        ({}, False, r"controller: process {pid} on laptop, for 60 s"),
        ({"boot": "another"}, True, "gone, last seen 0 s ago (process {pid} on laptop): nothing"),
        ({"process": [ME[0], 1]}, True, "controller: gone, last seen 0 s ago"),
        ({"silent": 90}, True, "process {pid} on laptop has hung for "),
    ],
)  # fmt: skip
def test_a_controller_is_described_by_what_it_has_reported(run, changes, missing, said):
    assert controller.read(run) is None
    report = _report(run, **changes)
    assert report.is_missing is missing
    assert said.format(pid=ME[0]) in report.describe()


@pytest.mark.parametrize("changes", [{"since": "now"}, {"process": [1]}, {"log": None}])
def test_a_damaged_report_counts_as_none(run, changes):
    assert _report(run)
    assert _report(run, **changes) is None


def test_a_run_has_one_controller_whose_report_ends_with_the_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr(controller, "_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(controller, "_BEAT_SECONDS", 0.05)
    first = controller.Controller(run)
    with pytest.raises(RunInUse, match="impala has a controller, which --status shows"):
        controller.Controller(run)
    first.begin(["command"], tmp_path / "log")
    path = run.folder / controller.STATE_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    os.utime(path, (1, 1))
    until(lambda: not controller.read(run).is_missing)
    first.end()
    assert controller.read(run) is None


def test_of_two_controllers_that_start_at_the_same_moment_one_stays(run, tmp_path, monkeypatch):
    """The other one exits, and both frontends report the one that stays."""
    monkeypatch.setattr(controller, "_LOCK_SECONDS", 0.1)
    other = controller.Controller(run)
    threading.Timer(0.5, other.begin, [["command"], tmp_path / "log"]).start()
    exits = [sys.executable, "-c", "raise SystemExit('impala has a controller')"]
    assert controller.ensure(run, exits, ".", tmp_path / "log", print).process == tuple(ME)
    other.end()


def test_a_controller_that_does_not_start_says_why(run, tmp_path):
    log = tmp_path / "controller.log"
    log.write_text("of before\n")
    exits = [sys.executable, "-c", "import sys; sys.exit('error: the key is gone')"]
    with pytest.raises(controller.NotStarted, match="exited with code 1: error: the key is gone"):
        controller.ensure(run, exits, ".", log, print)


def test_an_interrupted_start_leaves_no_controller(run, tmp_path):
    pressed = iter([False, True, True])
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    left = controller.ensure(run, sleeps, ".", tmp_path / "log", print, lambda: next(pressed))
    assert left is None


SLEEPS = "import time; print('up', flush=True); time.sleep(60)"


@pytest.mark.parametrize(("began", "code"), [(0, -9), (1, None)])
def test_a_controller_that_outlives_its_run_is_ended_and_no_process_of_its_pid(
    run, monkeypatch, began, code
):
    monkeypatch.setattr(controller, "_END_SECONDS", 0.2)
    process = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    recorded = [process.pid, procfs.start_time(process.pid) + began]
    controller.end(_report(run, process=recorded))
    assert process.poll() == code
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_frontend_takes_over_when_the_one_that_recovers_the_run_is_gone(run, monkeypatch):
    monkeypatch.setattr(run, "is_running", lambda: True)
    said = []
    first, second = (FollowedRun(run, None, say=said.append) for _ in range(2))
    assert first.holds_lock()
    assert not second.holds_lock()
    assert first.holds_lock()
    first.release_lock()
    assert second.holds_lock()
    assert not first.holds_lock()
    assert len(said) == 1
