"""The supervisor of mpirun's daemon, ordered by mpirun's own agent, and by others who must not."""

import contextlib
import os
import selectors
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from daemons import LINE, DaemonHost
from processes import wait
from supervising import until

from impala_mm.runtime import certificates
from impala_mm.transport.tls import Credentials
from launcher.supervise import (
    child_process,
    daemon_supervisor,
    mpirun_agent,
    order_channel,
    procfs,
    programs,
)

# Starts a rank in a process group of its own, as mpirun's daemon does, and prints both pids.
STAYS = (
    "rank = os.fork()\n"
    "if rank == 0:\n"
    "    os.setsid()\n"
    "    os.execvp('sleep', ['sleep', '60'])\n"
    "print('pids', os.getpid(), rank)\n"
    "time.sleep(60)"
)


@pytest.fixture
def host(tmp_path):
    made = []

    def make(script, **changes):
        made.append(DaemonHost(tmp_path, script, **changes))
        return made[-1]

    yield make
    for each in made:
        each.end()


def _pids(agent):
    """Return the pids of the daemon and of its rank, once they are running."""
    daemon, rank = map(int, agent.stdout.readline().split()[1:])
    assert procfs.start_time(daemon)
    assert procfs.start_time(rank)
    return daemon, rank


def _are_gone(pids):
    return not any(map(procfs.start_time, pids))


def test_the_agent_lives_as_long_as_the_daemon_and_has_its_exit_code(host):
    made = host(
        "print(*sys.argv[1:])\n"
        "print(os.environ['PRTE_PREFIX'], os.environ['IMPALA_MM_LEARNERS'], 'HOME' in os.environ)\n"
        "time.sleep(0.5)\n"
        "sys.exit(7)"
    )
    begin = time.monotonic()
    for _ in range(2):  # again after a restart of the learners
        agent = made.order()
        assert wait(agent, 10) == 7
        words, variables = agent.stdout.read().splitlines()
        assert words == (
            "--prtemca ess env --prtemca ess_base_nspace a@0 --prtemca ess_base_vpid 1 "
            "--prtemca prte_hnp_uri a;tcp://b:1"
        )
        assert variables == f"{made.task['prefix']} the-start True"
    assert time.monotonic() - begin > 1.0
    assert "mpirun's daemon exited with code 7" in made.log()


def test_what_a_daemon_said_last_is_shown_although_its_end_was_noticed_before(monkeypatch):
    monkeypatch.setattr(child_process, "kill_orphans", lambda: None)
    with subprocess.Popen(["sh", "-c", "echo why; exit 3"], stdout=subprocess.PIPE) as daemon:
        daemon.wait()
        selector, shown = selectors.DefaultSelector(), []
        selector.register(daemon.stdout, selectors.EVENT_READ)
        supervisor = object.__new__(daemon_supervisor.DaemonSupervisor)
        supervisor._process, supervisor._agent, supervisor._selector = daemon, None, selector
        supervisor._task = SimpleNamespace(folder="")
        supervisor._output = SimpleNamespace(write_message=lambda text: None)
        monkeypatch.setattr(supervisor, "_relay", shown.append)
        supervisor._check_daemon()
    assert shown == ["why\n"]
    assert not selector.get_map()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_the_agent_ends_the_daemon_and_its_ranks_are_killed(host, number):
    made = host(STAYS)
    agent = made.order()
    pids = _pids(agent)
    agent.send_signal(number)
    assert wait(agent, 5) == -number
    until(lambda: _are_gone(pids), 5)
    assert _pids(made.order())


def test_a_daemon_that_ignores_sigterm_is_killed(host):
    made = host(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{STAYS}")
    agent = made.order()
    pids = _pids(agent)
    agent.kill()
    agent.wait()
    until(lambda: _are_gone(pids), 5)


def test_a_killed_daemon_is_a_failure_and_its_ranks_end(host):
    made = host(STAYS)
    agent = made.order()
    daemon, rank = _pids(agent)
    os.kill(daemon, signal.SIGKILL)
    assert wait(agent, 5) == 128 + signal.SIGKILL
    until(lambda: _are_gone([rank]), 5)


def test_a_killed_supervisor_is_a_failure_and_its_daemon_ends(host):
    made = host(STAYS)
    agent = made.order()
    daemon, _ = _pids(agent)
    made.process.kill()
    assert wait(agent, 5) == 255
    assert "the supervisor of mpirun's daemon on 127.0.0.1 is lost" in agent.stdout.read()
    until(lambda: _are_gone([daemon]), 5)
    assert made.find_silent() == ["127.0.0.1"]
    agent = made.order()
    assert wait(agent, 5) == 255
    assert "Connection refused" in agent.stdout.read()


def test_a_new_mpirun_replaces_the_daemon_of_the_one_before(host):
    made = host(STAYS)
    first = made.order()
    pids = _pids(first)
    second = made.order()
    assert _pids(second)
    assert _are_gone(pids)
    assert wait(first, 5) == 128 + signal.SIGKILL


@pytest.mark.parametrize("line", ["hostname", f"touch X;{LINE}", f"{LINE};touch X"])
def test_a_line_that_is_not_the_daemons_is_refused_and_said(host, tmp_path, line):
    made = host(f"open({str(tmp_path / 'ran')!r}, 'w')")
    agent = made.order(line.replace("X", str(tmp_path / "ran")))
    assert wait(agent, 5) == 255
    said = agent.stdout.read()
    assert said.startswith("error: 127.0.0.1 refused mpirun's order: this does not start mpirun's")
    assert "refused an order from 127.0.0.1: this does not start mpirun's daemon" in made.log()
    assert not (tmp_path / "ran").exists()


def _without_authority(credentials):
    return credentials[: credentials.rindex("-----BEGIN CERTIFICATE")]


# What strangers show, from (the credentials of this run, those of another).
STRANGERS = {
    "nothing": (lambda own, other: "", "it has no certificate"),
    "an actor's": (
        lambda own, other: Credentials.parse(f"token\n{certificates.make()}").actor,
        "its certificate is not that of this run's mpirun",
    ),
    "a learner's": (
        lambda own, other: Credentials.parse(f"token\n{certificates.make()}").learner,
        "its certificate is not that of this run's mpirun",
    ),
    "mpirun's of another run": (
        lambda own, other: _without_authority(other[order_channel.MPIRUN]),
        "its certificate is not that of this run's mpirun",
    ),
    "another supervisor's": (
        lambda own, other: _without_authority(own[order_channel.SUPERVISOR]),
        "its certificate is not that of this run's mpirun",
    ),
}


@pytest.mark.parametrize("shows", STRANGERS)
def test_a_stranger_gets_nothing_started_and_is_said(host, tmp_path, shows):
    """The stranger knows the order and the supervisor's id, and accepts any server."""
    made = host(f"open({str(tmp_path / 'ran')!r}, 'w')")
    own, other = (
        certificates.by_role(content, order_channel.ROLES)
        for content in (made.content, certificates.make(order_channel.ROLES))
    )
    make, why = STRANGERS[shows]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate := make(own, other):
        (tmp_path / "shown").write_text(certificate)
        context.load_cert_chain(tmp_path / "shown")
    order = {"id": made.entry["id"], "order": "start", "line": LINE}
    with (
        socket.create_connection(("127.0.0.1", made.entry["port"]), 5) as plain,
        contextlib.suppress(OSError),
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(order_channel.encode(order))
        assert connection.recv(100) == b""
    assert f"refused a connection from 127.0.0.1: {why}\n" in until(made.log)
    assert not (tmp_path / "ran").exists()


def test_mpirun_orders_no_supervisor_of_another_run(host):
    made = host(STAYS)
    other = certificates.make(order_channel.ROLES)
    made.introduce(certificates.by_role(other, order_channel.ROLES)[order_channel.MPIRUN])
    agent = made.order()
    assert wait(agent, 5) == 255
    assert "is lost: " in agent.stdout.read()
    made.introduce(made.credentials, id="of one that has ended")
    agent = made.order()
    assert wait(agent, 5) == 255
    assert "the order is for another supervisor, which has ended" in agent.stdout.read()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "it does not speak TLS 1.3 (HTTP_REQUEST)"),
        (b"\x16\x03", "it closed the connection"),  # as a handshake begins
    ],
)
def test_refusals_are_shown_in_the_learners_log_while_mpirun_is_connected(host, sent, why):
    made = host(STAYS)
    agent = made.order()
    _pids(agent)
    with socket.create_connection(("127.0.0.1", made.entry["port"]), 5) as plain:
        plain.sendall(sent)
        with contextlib.suppress(OSError):  # a quick refusal has ended the connection already
            plain.shutdown(socket.SHUT_WR)
        assert agent.stdout.readline() == (
            f"[127.0.0.1] refused a connection from 127.0.0.1: {why}\n"
        )


def test_peers_that_send_nothing_are_bounded_and_keep_no_daemon_from_running(host):
    made = host(STAYS)
    agent = made.order()
    pids = _pids(agent)
    with contextlib.ExitStack() as held:
        for _ in range(30):
            held.enter_context(socket.create_connection(("127.0.0.1", made.entry["port"]), 5))
        until(lambda: "its place was needed for a newer connection" in made.log())
        assert len(list(Path(f"/proc/{made.process.pid}/fd").iterdir())) < 25
        assert not _are_gone(pids)
        assert made.find_silent() == [], "mpirun's own connection takes the place of the oldest"


def _end_by_order(host):
    mpirun_agent.end_supervisors(mpirun_agent.read(host.first))


@pytest.mark.parametrize(
    "end",
    [_end_by_order, lambda host: host.request_stop("now"), DaemonHost.forget],
    ids=["an order", "a request to stop", "another start"],
)
def test_it_ends_with_the_run_and_so_does_its_daemon(host, end):
    made = host(STAYS)
    made.request_stop("save")  # the learners save first
    pids = _pids(made.order())
    time.sleep(1)
    assert made.process.poll() is None
    end(made)
    assert wait(made.process, 10) == 0
    assert _are_gone(pids)


def test_without_a_frontend_and_without_orders_it_ends_after_a_while(host):
    made = host(STAYS, lease_secs=1.5)
    agent = made.order()
    _pids(agent)
    time.sleep(2)
    assert made.process.poll() is None, "its daemon is running"
    agent.kill()
    agent.wait()
    for _ in range(20):
        time.sleep(0.1)
        (made.state / "news").touch()
    assert made.process.poll() is None, "a frontend is connected"
    assert wait(made.process, 10) == 0


def test_without_a_state_folder_it_ends_with_its_input(host):
    made = host(STAYS, folder="")
    agent = made.order()
    pids = _pids(agent)
    made.process.stdin.close()
    assert wait(made.process, 10) == 0
    assert _are_gone(pids)
    assert wait(agent, 5) == 128 + signal.SIGKILL


def test_several_take_different_ports(host, tmp_path):
    made = host(STAYS)
    process, entry = programs.start_daemon_supervisor(made.task | {"folder": ""})
    process.stdin.close()
    assert entry["port"] != made.entry["port"]
    assert min(entry["port"], made.entry["port"]) >= order_channel.FIRST_PORT
    assert wait(process, 10) == 0
