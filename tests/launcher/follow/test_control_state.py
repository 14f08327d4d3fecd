"""What frontends read of a run's controller, and which of them recovers the run."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from supervising import until

from launcher.follow import controller
from launcher.follow.followed_run import FollowedRun
from launcher.supervise import procfs
from launcher.supervise.run_registry import Run, RunInUse, boot_id
from launcher.supervise.task import write_json

ME = [os.getpid(), procfs.start_time(os.getpid())]


@pytest.fixture
def run(tmp_path):
    made = Run("impala", tmp_path)
    (made.folder / "seen").mkdir(parents=True)
    return made


def _report(run, **changes):
    entry = {"process": ME, "boot": boot_id(), "host": "laptop", "since": time.time() - 60}
    entry |= {"beat": time.time(), "ended": "", "unreached": [], "logins": {}, "log": "/l"}
    entry |= {"command": ["command"], "folder": "/", "ready": True}
    write_json(run.folder / controller.STATE_FILE, entry | changes)
    return controller.read(run)


def test_a_run_without_a_controller_has_nothing_to_say_about_one(run):
    entry = controller.read(run)
    assert (entry, controller.describe(entry)) == ({}, "")
    assert not controller.is_alive(entry)
    assert not controller.is_missing(entry)


@pytest.mark.parametrize(
    ("changes", "missing", "said"),
    [
        ({}, False, r"controller: process {pid} on laptop, for 60 s"),
        ({"boot": "another"}, True, "gone, last seen 0 s ago (process {pid} on laptop): nothing"),
        ({"process": [ME[0], 1]}, True, "controller: gone, last seen 0 s ago"),
        ({"beat": time.time() - 90}, True, "process {pid} on laptop has hung for "),
        ({"ended": "the run has ended", "process": [1, 1]}, False,
         "controller: ended, as the run has ended"),
        ({"unreached": ["b", "c"]}, False, "for 60 s; it cannot reach b, c"),
    ],
)  # fmt: skip
def test_a_controller_is_described_by_what_it_has_reported(run, changes, missing, said):
    entry = _report(run, **changes)
    assert controller.is_missing(entry) is missing
    assert said.format(pid=ME[0]) in controller.describe(entry)


@pytest.mark.parametrize(
    "changes",
    [{"beat": "now"}, {"process": [1]}, {"unreached": None}, {"ended": 1}, {"ready": "yes"}],
)
def test_a_damaged_report_counts_as_none(run, changes):
    assert _report(run)
    assert _report(run, **changes) == {}


def test_its_logins_are_named_and_an_agent_must_keep_running(run):
    files = {"logins": {"/home/me/.ssh/id": 2, "the password": 1}}
    assert controller.describe_logins(_report(run, **files)) == (
        "the controller connects by /home/me/.ssh/id (2 hosts), the password (1 host)"
    )
    agent = controller.describe_logins(_report(run, logins={"the agent's me@home": 1}))
    assert agent.endswith("; it needs that SSH agent to run as long as the run")
    assert controller.describe_logins(_report(run)) == ""


def test_a_run_has_one_controller(run, tmp_path, monkeypatch):
    monkeypatch.setattr(controller, "_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(controller, "_BEAT_SECONDS", 0.05)
    first = controller.Controller(run, ["command"], tmp_path / "log")
    with pytest.raises(RunInUse, match=f"impala has a controller: controller: process {ME[0]} on"):
        controller.Controller(run, ["command"], tmp_path / "log")
    assert controller.is_alive(controller.read(run))
    nodes = {
        "a": SimpleNamespace(login="a key", error=""),
        "b": SimpleNamespace(login="", error="x"),
    }
    first.begin(nodes)
    assert controller.read(run)["logins"] == {"a key": 1}
    assert controller.read(run)["unreached"] == ["b"], "it is known before `--detach` returns"
    nodes["b"].error = ""
    until(lambda: controller.read(run)["unreached"] == [])
    first.end("the run has ended")
    assert controller.describe(controller.read(run)) == "controller: ended, as the run has ended"
    assert (run.folder / controller.STATE_FILE).stat().st_mode & 0o777 == 0o600


def test_a_controller_that_does_not_start_says_why(run, tmp_path):
    log = tmp_path / "controller.log"
    log.write_text("of before\n")
    for code, why in (
        ("import sys; sys.exit('error: the key is gone')", "it exited with code 1: error: the key"),
        ("", "it exited with code 0: it has printed nothing; log: "),
    ):
        with pytest.raises(controller.NotStarted) as error:
            controller.ensure(run, [sys.executable, "-c", code], ".", log, print)
        assert str(error.value).startswith(why)


def test_an_interrupted_start_leaves_no_controller(run, tmp_path):
    pressed = iter([False, False, True, True])
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    left = controller.ensure(run, sleeps, ".", tmp_path / "log", print, lambda: next(pressed))
    assert left is None
    assert controller.read(run) == {}


OBEYS = "import time; print('up', flush=True); time.sleep(60)"
REFUSES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEYS}"


@pytest.mark.parametrize(
    ("program", "began", "code"), [(OBEYS, 0, -15), (REFUSES, 0, -9), (OBEYS, 1, None)]
)
def test_a_controller_that_outlives_its_run_is_ended_and_no_process_of_its_pid(
    run, monkeypatch, program, began, code
):
    monkeypatch.setattr(controller, "_END_SECONDS", 0.2)
    monkeypatch.setattr(controller, "_KILL_SECONDS", 0.5)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    recorded = [process.pid, procfs.start_time(process.pid) + began]
    controller.end(_report(run, process=recorded))
    assert process.poll() == code
    process.kill()
    process.wait()
    process.stdout.close()


def _followed(run, said):
    control = SimpleNamespace(run=run, hosts=None)
    return FollowedRun(control, None, None, [], None, 1.0, said.append)


def test_a_frontend_takes_over_when_the_one_that_recovers_the_run_is_gone(run, monkeypatch):
    monkeypatch.setattr(run, "is_running", lambda: True)
    said = []
    first, second = _followed(run, said), _followed(run, said)
    assert first.holds_lock()
    assert not second.holds_lock()
    assert first.holds_lock()
    first.release_lock()
    assert second.holds_lock()
    assert not first.holds_lock()
    assert said == ["the frontend that restarted what fails is gone: this one does so now"]
