"""The front as a process: how it starts, how it ends, and what is left without it."""

import contextlib
import resource
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from fronted import TOKEN, Learner
from processes import ROOT, free_port, wait
from supervising import until

from impala_mm.runtime.ports import HeldAddress, split_address
from impala_mm.transport.client import Unreachable
from impala_mm.transport.front import HANDSHAKES
from impala_mm.transport.listening import FrontProcess
from impala_mm.transport.tls import ACTOR, LEARNER, Credentials


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
    assert wait(first, 5) == -signal.SIGKILL
    until(lambda: _answers(client), 20)
    assert learner.join().nonce == client.nonce
    assert learner.front.process.pid != first.pid
    assert any("has ended (exit code -9); starting it again" in line for line in learner.said)


def _answers(client):
    with contextlib.suppress(Unreachable):
        return client.hello({"probe": True})


_OWNER = """
import sys, time
from pathlib import Path
from unittest.mock import MagicMock
for unused in ("tensorflow", "impala_mm.transport.client"):  # it takes seconds to load
    sys.modules[unused] = MagicMock()
from impala_mm.runtime import run_token
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.tls import Credentials
from impala_mm.transport.listening import FrontProcess
held, said = HeldAddress(sys.argv[1]), []
credentials = Credentials.parse(run_token.make())
print("listens at", held.sockets[0].fileno(), flush=True)
front = FrontProcess(held.take_sockets(), Path("/none"), credentials, said.append)
print(front.serves.wait(60), said, flush=True)
print(front.process.pid, flush=True)
time.sleep(60)
"""


def test_a_learner_without_standard_input_has_a_front_which_ends_with_it_even_if_it_is_killed():
    address = f"127.0.0.1:{free_port()}"
    command = ["sh", "-c", 'exec "$0" "$@" <&-', sys.executable, "-c", _OWNER, address]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout.readline() == "listens at 0\n"
    assert owner.stdout.readline() == "True []\n"
    pid = int(owner.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    owner.kill()
    owner.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), 5)
    HeldAddress(address).release()


def test_files_of_the_folder_where_a_learner_starts_are_not_run(tmp_path, monkeypatch):
    """The folder may be another user's."""
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    with Learner() as learner:
        assert learner.join().run
        assert learner.said == ["actor 1 on " + socket.gethostname() + " joined"]


@pytest.fixture
def lone():
    """Yield a function that starts a front whose learner does not listen, and what it said."""
    fronts, said = [], []

    def start(before=lambda address: None):
        held = HeldAddress(f"127.0.0.1:{free_port()}")
        before(held.address)
        credentials = Credentials.parse(TOKEN)
        front = FrontProcess(held.take_sockets(), Path("/none"), credentials, said.append)
        fronts.append(front)
        until(front.serves.is_set)
        return front, held.address, said

    yield start
    for each in fronts:
        each.stop()


@pytest.mark.parametrize("how", ["reset", "closed"])
def test_an_actor_that_gave_up_while_the_front_started_is_no_stranger_to_tls(lone, how):
    def give_up(address):
        gone = socket.create_connection(split_address(address))
        gone.sendall(b"\x16\x03\x01\x00\xe0")  # how a handshake begins
        if how == "reset":
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()

    *_, said = lone(give_up)
    until(lambda: said, 5)
    (line,) = said
    assert "it closed the connection during the handshake" in line


def test_a_learners_socket_that_is_gone_is_reported(lone):
    _, address, said = lone()
    context = Credentials.parse(TOKEN).context(ACTOR)
    with (
        socket.create_connection(split_address(address)) as bare,
        context.wrap_socket(bare, server_hostname=LEARNER) as secure,
    ):
        assert not secure.recv(1)
    until(lambda: said, 5)
    (line,) = said
    assert "the learner's own socket cannot be reached: No such file" in line


def test_a_front_serves_no_more_connections_than_its_learner_can_open(lone):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        front, *_ = lone()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    soft, _ = resource.prlimit(front.process.pid, resource.RLIMIT_NOFILE)
    assert soft == 2 * (1024 - 500) + 2 * HANDSHAKES + 100
