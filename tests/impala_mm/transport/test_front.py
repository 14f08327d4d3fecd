"""Who reaches a learner: holders of its token file, by TLS or on its own socket; nobody else."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hostile_message import send_hostile
from processes import ROOT, free_port
from supervising import until

from impala_mm.runtime import certificates, run_token
from impala_mm.runtime.ports import HeldAddress, split_address
from impala_mm.transport import front, local_sockets, route
from impala_mm.transport.client import Client, Refused, Unreachable
from impala_mm.transport.credentials import ACTOR, LEARNER, Credentials
from impala_mm.transport.messages import Reply
from impala_mm.transport.server import Server

TOKEN = run_token.make()
NO_EPISODES = np.zeros([0, 3], np.float32)
ME = {"run_id": "run", "level_name": "L", "unroll": "u", "network": "n", "acting": "a"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Learner:
    """A server with a front, what it has logged, and its address."""

    def __init__(self, **options):
        self.said = []
        self.address = f"127.0.0.1:{free_port()}"
        held = HeldAddress(self.address)
        self.server = Server(self.address, held, TOKEN, ME, 100, self.said.append, **options)
        self.front = self.server.listener.front

    def join(self, from_outside=True, token=TOKEN):
        """Return the client of an actor that has joined."""
        client = Client(self.address, token, 10, from_outside)
        client.hello(ME | {"actor": 1, "incarnation": 1, "level": "L"})
        return client

    def dial(self):
        """Return a bare connection to the learner's port."""
        return socket.create_connection(split_address(self.address), 10)

    def refusals(self):
        """Return the logged lines about connections that were refused."""
        return [line for line in self.said if "refused from" in line]


@pytest.fixture(scope="module")
def shared():
    learner = Learner()
    yield learner
    learner.front.stop()
    learner.server.close()


@pytest.fixture
def learner():
    learner = Learner()
    yield learner
    learner.front.stop()
    learner.server.close()


def _slowest_call(client, calls=20):
    """Return the seconds of the slowest of some calls."""
    slowest = 0.0
    for _ in range(calls):
        since = time.monotonic()
        client.hello({"probe": True})
        slowest = max(slowest, time.monotonic() - since)
    return slowest


# -- those who may


@pytest.mark.parametrize("from_outside", [False, True])
def test_large_messages_arrive_whole_by_either_way(shared, from_outside):
    client = shared.join(from_outside)
    parameters = random.Random(1).randbytes(9_000_000)
    shared.server.publish(7, lambda: parameters)
    assert client.get_parameters() == (7, parameters)
    contents = [random.Random(n).randbytes(2_000_000) for n in range(3)]
    header = client.header(1, 1)._replace(number=int(from_outside))
    assert client.enqueue(header, contents, NO_EPISODES) == Reply.ACCEPTED
    assert list(shared.server.queue.dequeue_many(3)[0].numpy()) == contents


def test_an_actor_of_this_machine_takes_the_socket_by_any_name_of_the_address(shared):
    port = split_address(shared.address)[1]
    credentials = Credentials.parse(TOKEN)
    for host in ("127.0.0.1", "localhost"):
        target = route.find(f"{host}:{port}", credentials, 5, from_outside=False)
        assert re.fullmatch(rf"unix:/tmp/impala_mm-\d+/\d+-127.0.0.1-{port}", target)
    outside = route.find(shared.address, credentials, 5, from_outside=True)
    assert re.fullmatch(rf"unix:/tmp/impala_mm-\d+/{os.getpid()}-\d+", outside), "its own relay"


def test_a_learner_at_all_addresses_is_found_by_each_of_this_machine():
    held = HeldAddress(f"0.0.0.0:{free_port()}")
    path = local_sockets.path_of_learner(held.sockets)
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(path))
        own.listen()
        for host in ("127.0.0.1", "127.3.2.1", "localhost"):
            assert local_sockets.find_learner(f"{host}:{held.port}") == path
        for address in (f"192.0.2.1:{held.port}", f"127.0.0.1:{free_port()}", "no.invalid:1"):
            assert local_sockets.find_learner(address) is None
    held.release()


def test_a_learner_with_transport_security_tls_offers_no_socket():
    learner = Learner(offers_socket=False)
    assert local_sockets.find_learner(learner.address) is None
    assert learner.join(from_outside=False).run
    learner.front.stop()
    learner.server.close()


def test_many_calls_at_once_go_through(shared):
    def call():
        for number in range(10):
            assert client.hello({"probe": True})["nonce"], number

    client = shared.join()
    callers = [threading.Thread(target=call) for _ in range(16)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(30)
        assert not each.is_alive()


def test_an_environments_proxy_has_no_say(shared, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert shared.join().hello({"probe": True})["nonce"]


def test_the_front_knows_neither_tensorflow_nor_the_actors_key(shared):
    maps = Path(f"/proc/{shared.front.process.pid}/maps").read_text()
    assert "_ssl" in maps
    assert "tensorflow" not in maps
    assert Credentials.parse(TOKEN).actor not in shared.front._given


# -- those who may not


OTHER = run_token.make()
_SECRET = TOKEN.partition("\n")[0]
_MINE = Credentials.parse(TOKEN)


def _text(days_before=certificates.DAYS_BEFORE, days_after=certificates.DAYS_AFTER):
    return f"{_SECRET}\n{certificates.make(certificates.ROLES, days_before, days_after)}"


@pytest.mark.parametrize(
    ("token", "here", "there"),
    [
        # The actor looks first; where it is satisfied, the learner decides.
        (OTHER, "self-signed certificate|unable to get local issuer", "the token file of another"),
        (
            "\n".join([_SECRET, _MINE.authority, _MINE.learner, Credentials.parse(OTHER).actor]),
            "unknown ca",
            "its certificate is not accepted: ",
        ),
        (
            "\n".join([_SECRET, _MINE.authority, _MINE.learner, _MINE.learner]),
            "",
            "its certificate is not accepted: unsuitable certificate purpose",
        ),
    ],
    ids=["another run", "another run's certificate", "a learner's certificate"],
)
def test_another_certificate_is_refused_with_the_command_that_helps(learner, token, here, there):
    with pytest.raises(Refused, match=rf"copy its token file to this host.*TLS: .*({here})"):
        Client(learner.address, token, 10, from_outside=True)
    until(learner.refusals, 10)
    line = learner.refusals()[0]
    assert re.fullmatch(rf"1 connection refused from 127.0.0.1 \(.*{there}.*\)", line)
    assert learner.join().hello({"probe": True})["nonce"]


@pytest.mark.parametrize(
    ("days", "why"), [((30, -1), "certificate has expired"), ((-1, 30), "is not yet valid")]
)
def test_a_certificate_is_refused_before_and_after_its_time(monkeypatch, days, why):
    """The learner's own check finds it, too; here it does not look."""
    monkeypatch.setattr("impala_mm.transport.listening.Listener.check", lambda *_: None)
    monkeypatch.setattr(sys.modules[__name__], "TOKEN", token := _text(*days))
    learner = Learner()
    context = Credentials.parse(token).context(ACTOR)  # of an actor that does not look at dates
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError), learner.dial() as bare, context.wrap_socket(bare) as secure:
        secure.recv(1)
    until(lambda: any(why in line for line in learner.refusals()), 10)
    with pytest.raises(Refused, match=rf"copy its token file to this host.* \(TLS: .*{why}"):
        Client(learner.address, token, 10, from_outside=True)
    learner.front.stop()
    learner.server.close()


def test_whoever_has_no_certificate_connects_and_reads_nothing(learner):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secure = context.wrap_socket(learner.dial())  # TLS 1.3 gets this far
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"), secure:
        secure.recv(1)
    until(learner.refusals, 10)
    assert learner.refusals() == ["1 connection refused from 127.0.0.1 (it has no certificate)"]


def test_older_tls_is_refused(shared):
    context = _MINE.context(ACTOR)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError), shared.dial() as bare:
        context.wrap_socket(bare, server_hostname=LEARNER)


def test_an_actor_without_tls_and_one_whose_learner_has_none_are_told(shared):
    with pytest.raises(Unreachable, match="nothing answers at"):
        Client(shared.address, _SECRET, 1)
    address = f"127.0.0.1:{free_port()}"
    plain = Server(address, HeldAddress(address), _SECRET, ME, 1, lambda _: None)
    assert plain.listener.front is None
    with pytest.raises(
        Refused, match=f"the process at {address} does not use TLS: if it is a lear"
    ):
        Client(address, TOKEN, 5)
    assert Client(address, _SECRET, 5).hello({"probe": True})["nonce"]
    plain.close()


@needs_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_another_user_of_this_machine_reaches_neither_end(shared):
    client = shared.join()  # with a relay of its own
    folder = Path(f"/tmp/impala_mm-{os.geteuid()}")
    sockets = [str(path) for path in folder.iterdir() if local_sockets.answers(path)]
    assert len(sockets) >= 2
    program = (
        "import socket, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try: socket.socket(socket.AF_UNIX).connect(path)\n"
        "    except PermissionError: print('denied')\n"
    )
    python = [getattr(sys, "_base_executable", sys.executable), "-I", "-c", program, *sockets]
    for other, printed in (
        (["--reuid=65534", "--regid=65534", "--clear-groups"], "denied\n"),
        ([], ""),
    ):
        ran = subprocess.run(
            ["setpriv", *other, *python], capture_output=True, text=True, check=False, cwd="/"
        )
        assert (ran.returncode, ran.stdout) == (0, printed * len(sockets)), ran.stderr
    assert client.hello({"probe": True})["nonce"]


def test_a_folder_of_another_user_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(local_sockets, "_FOLDER", tmp_path / "squatted")
    (tmp_path / "squatted").mkdir()
    (tmp_path / "squatted").chmod(0o777)
    other = tempfile.TemporaryDirectory(dir="/tmp")  # a path of at most 107 letters
    monkeypatch.setattr(tempfile, "tempdir", other.name)
    learner = Learner()
    assert local_sockets.find_learner(learner.address) is None
    assert learner.join(from_outside=False).hello({"probe": True})["nonce"], "by TLS"
    assert not list((tmp_path / "squatted").iterdir())
    assert {path.stat().st_mode & 0o777 for path in Path(other.name).iterdir()} == {0o700}
    learner.front.stop()
    learner.server.close()
    other.cleanup()


def test_sockets_that_killed_processes_left_are_removed_and_cost_no_time(monkeypatch, tmp_path):
    monkeypatch.setattr(local_sockets, "_FOLDER", tmp_path / "own")
    held = HeldAddress(address := f"127.0.0.1:{free_port()}")
    path = local_sockets.path_of_learner(held.sockets)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    since = time.monotonic()
    assert local_sockets.find_learner(address) is None
    assert time.monotonic() - since < 1
    os.utime(path, (0, 0))
    assert local_sockets.path_of_actor() != path
    assert not path.exists()
    held.release()


# -- those who try


def test_a_message_that_tensorflow_expands_never_reaches_it(learner):
    client = learner.join()
    _slowest_call(client)
    senders = [send_hostile(learner.address) for _ in range(3)]
    assert _slowest_call(client) < 3
    for each in senders:
        with contextlib.suppress(ConnectionResetError):
            assert b"\0\0\0\4" not in each.recv(100), "no answer in HTTP/2"
        each.close()
    until(learner.refusals, 10)
    assert "it does not speak TLS 1.3" in learner.refusals()[0]


@pytest.mark.slow
def test_that_message_holds_up_a_learner_without_a_front():
    """The test above is worth something."""
    address = f"127.0.0.1:{free_port()}"
    plain = Server(address, HeldAddress(address), _SECRET, ME, 1, lambda _: None)
    client = Client(address, _SECRET, 60)
    _slowest_call(client)
    senders = [send_hostile(address) for _ in range(3)]
    assert _slowest_call(client) > 3
    for each in senders:
        each.close()
    plain.close()


def test_garbage_half_handshakes_and_idle_connections_are_closed_and_counted(learner):
    client = learner.join()
    before = _resident(learner.front.process.pid)
    open_ones = []
    for number in range(front.CONNECTIONS // 20):  # 200, one kind after the other
        with contextlib.suppress(OSError):  # it is among those that are refused at once
            connection = learner.dial()
            open_ones.append(connection)
            if number % 3 == 1:
                connection.sendall(random.Random(number).randbytes(300))
            if number % 3 == 2:
                connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the start of a handshake
    assert _slowest_call(client) < 2
    until(learner.refusals, 10)
    for each in open_ones:
        each.settimeout(front.HANDSHAKE_SECONDS + 5)
        with contextlib.suppress(ConnectionResetError):
            while each.recv(4096):
                pass
        each.close()
    assert _slowest_call(client) < 2
    assert _resident(learner.front.process.pid) - before < 30, "megabytes"


def test_connections_that_are_reset_at_once_do_not_end_the_front(learner):
    """Each may be gone before the front has accepted it, with bytes or without."""
    client = learner.join()
    process, reset = learner.front.process, struct.pack("ii", 1, 0)
    for number in range(2000):
        with contextlib.suppress(OSError), learner.dial() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            if number % 2:
                connection.send(b"\x16\x03\x01\x02\x00\x01\x00")
    _slowest_call(client)
    assert learner.front.process is process
    assert process.poll() is None
    assert not [line for line in learner.said if "has ended" in line]


@pytest.mark.slow
def test_a_flood_of_strangers_costs_little_and_actors_calls_go_on(learner):
    """Garbage, the start of a handshake, and a message, 1,000 a second for 12 s."""
    client, pid = learner.join(), learner.front.process.pid
    _slowest_call(client)
    program = ROOT / "tests" / "helpers" / "flood.py"
    flood = subprocess.Popen(
        [sys.executable, str(program), learner.address, "1000", "12"],
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(2)
    memory, used, since = _resident(pid), _cpu_seconds(pid), time.monotonic()
    slowest = 0.0
    while flood.poll() is None:
        slowest = max(slowest, _slowest_call(client, 5))
        time.sleep(0.2)
        if time.monotonic() - since < 9:
            share = (_cpu_seconds(pid) - used) / (time.monotonic() - since)
    made = int(flood.stdout.read())
    print(f"{made} connections; {share:.3f} of a core; slowest call {slowest:.3f} s")
    assert made > 6000
    assert share < 0.2
    assert slowest < 3
    assert _resident(pid) - memory < 10, "megabytes"
    assert len(learner.refusals()) < 5


def _resident(pid):
    """Return the memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- ends


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
