"""Tests of launcher/node/recorded_process.py, with real processes."""

import subprocess
import sys

import pytest

from launcher.node import procfs, recorded_process

OBEYS = "import time; print('up', flush=True); time.sleep(60)"
REFUSES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEYS}"


@pytest.fixture
def start():
    """Return a function that starts a program, and returns it with its record."""
    started = []

    def start(program):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process, [process.pid, procfs.start_time(process.pid)]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_one_that_obeys_ends_by_sigterm_and_one_that_does_not_by_sigkill(start, monkeypatch):
    monkeypatch.setattr(recorded_process, "_KILL_SECONDS", 0.5)
    for program, code in ((OBEYS, -15), (REFUSES, -9)):
        process, record = start(program)
        recorded_process.end(record)
        assert process.wait(5) == code


def test_another_process_of_the_same_pid_is_left_alone(start):
    process, (pid, began) = start(OBEYS)
    assert recorded_process.kill([pid, began + 1]), "the recorded one has ended"
    recorded_process.end(None)
    assert process.poll() is None
    assert not recorded_process.wait_for_end([pid, began], 0.2)
    assert recorded_process.kill([pid, began])
    assert process.wait(5) == -9
