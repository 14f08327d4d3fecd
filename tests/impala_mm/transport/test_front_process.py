"""The front as a process: how it starts, how it ends, and what is left without it."""

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fronted import TOKEN, Learner
from processes import ROOT, free_port
from supervising import until

from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.client import Unreachable


@pytest.fixture
def learner():
    with Learner() as made:
        yield made


def test_a_front_that_is_killed_starts_again_and_actors_reconnect(learner):
    client = learner.join()
    first = learner.front.process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        first.send_signal(number)  # meant for the learner, whose process group it shares
    assert client.hello({"probe": True})["nonce"]
    first.kill()
    assert first.wait(5) == -signal.SIGKILL
    until(lambda: _answers(client), 20)
    assert learner.join().nonce == client.nonce
    assert learner.front.process.pid != first.pid
    assert (
        "the process that other hosts connect to has ended (exit code -9); starting it again, and "
        "actors reconnect" in learner.said
    )


def _answers(client):
    with contextlib.suppress(Unreachable):
        return client.hello({"probe": True})


_OWNER = """
import sys, time
from pathlib import Path
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.credentials import Credentials
from impala_mm.transport.front_process import FrontProcess
text = sys.stdin.readline().replace("|", "\\n")
held = HeldAddress(sys.argv[1])
front = FrontProcess(held.take_sockets(), Path("/none"), Credentials.parse(text), print)
print(front.process.pid, flush=True)
time.sleep(60)
"""


def test_files_of_the_folder_where_a_learner_starts_are_not_run(tmp_path, monkeypatch):
    """The folder may be another user's."""
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    with Learner() as learner:
        assert learner.join().run
        assert learner.said == ["actor 1 on " + socket.gethostname() + " joined"]


def test_a_front_ends_with_its_learner_even_if_that_is_killed():
    address = f"127.0.0.1:{free_port()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    pid = int(_ask(owner))
    owner.kill()
    owner.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), 5)
    HeldAddress(address).release()


def _ask(owner):
    owner.stdin.write(TOKEN.replace("\n", "|") + "\n")
    owner.stdin.flush()
    return owner.stdout.readline()
