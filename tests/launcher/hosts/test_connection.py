"""SSH to real servers: silent, busy, behind jump hosts; and logins from another machine."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deadlines import within
from processes import free_port
from ssh_servers import Obedient, saying
from ssh_user import connect, needs_sshd, says
from supervising import until

from launcher.hosts import connection as ssh
from launcher.hosts.ssh_config import HostUnavailable, Target
from launcher.supervise import procfs

pytestmark = needs_sshd


@pytest.mark.parametrize(
    ("words", "what"),
    [(b"", "sends nothing"), (b"SSH-2.0-Silent\r\n", "does not finish its handshake")],
)
def test_a_server_that_falls_silent_is_reported_within_seconds(ssh_user, monkeypatch, words, what):
    monkeypatch.setattr(ssh, "_HANDSHAKE_SECONDS", 0.6)
    why = rf"accepts the connection, but {what} for 0\.6 s"
    with saying(words) as port, within(3), pytest.raises(HostUnavailable, match=why):
        connect(Target("127.0.0.1", port), ssh_user.settings)


def test_a_server_that_hangs_up_is_tried_again_for_seconds_then_reported(ssh_user, monkeypatch):
    monkeypatch.setattr(ssh, "_RETRY_PAUSES", (0.1, 0.2))
    for words in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        with (
            saying(words, then_close=True) as port,
            pytest.raises(HostUnavailable, match="hangs up before the login"),
        ):
            connect(Target("127.0.0.1", port), ssh_user.settings)
    path = ssh_user.key()
    port, log = free_port(), []

    def first_busy_then_well():
        with socket.create_server(("127.0.0.1", port)) as busy:
            busy.accept()[0].close()
            log.append("hung up")
        server = Obedient(keys=[path], port=port)
        log.append(server)

    thread = threading.Thread(target=first_busy_then_well)
    thread.start()
    ssh_user.wants("Host *", "  StrictHostKeyChecking accept-new")
    while True:  # until it listens
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
    thread.join()
    ssh_user.enters(log[1], path)
    log[1].end()


def test_a_server_that_sends_nonsense_is_reported_in_one_sentence(ssh_user, capfd):
    with saying(b"SSH-2.0-Nonsense\r\n" + b"nonsense" * 9) as port:
        target = Target("127.0.0.1", port)
        with pytest.raises(HostUnavailable, match=rf"\(127\.0\.0\.1:{port}\): SSH fails: .+"):
            connect(target, ssh_user.settings)
    assert capfd.readouterr() == ("", "")


def test_hosts_that_cannot_be_reached_are_reported(ssh_user):
    port = free_port()
    with pytest.raises(HostUnavailable, match=rf"127\.0\.0\.1:{port}\) refuses connections"):
        connect(Target("127.0.0.1", port), ssh_user.settings)
    with pytest.raises(HostUnavailable, match=r"there is no host no\.such\.host\.invalid"):
        connect(Target("no.such.host.invalid"), ssh_user.settings)
    with pytest.raises(HostUnavailable, match="'-oProxyCommand=x' is not a host name"):
        connect(Target("-oProxyCommand=x"), ssh_user.settings)
    ssh_user.wants("Host *", "  ConnectTimeout 1")
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:  # the server accepts none of them, and its queue is full
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        with within(3), pytest.raises(HostUnavailable, match="did not answer in 1 s"):
            connect(Target("127.0.0.1", port), ssh_user.settings)
        for each in waiting:
            each.close()


def _hops(ssh_user, **more):
    """Return two servers: `inner` is behind `outer`, and only the configuration knows it."""
    keys = {name: ssh_user.key(f"key_{name}") for name in ("outer", "inner")}
    servers = {
        name: ssh_user.sshd(name=name, lets_in=[path], **more) for name, path in keys.items()
    }
    ssh_user.wants(
        *("Host outer", "  HostName 127.0.0.1", f"  Port {servers['outer'].port}"),
        f"  IdentityFile {keys['outer']}",
        *("Host inner", "  HostName 127.0.0.1", f"  Port {servers['inner'].port}"),
        *(f"  IdentityFile {keys['inner']}", "  ProxyJump outer"),
        *("Host innermost", "  HostName 127.0.0.1", f"  Port {servers['outer'].port}"),
        *(f"  IdentityFile {keys['outer']}", "  ProxyJump outer,inner"),
        *("Host round", "  ProxyJump and-round", "Host and-round", "  ProxyJump round"),
    )
    return servers


def test_a_host_is_reached_through_others_each_with_its_own_key_and_host_key(ssh_user):
    servers = _hops(ssh_user)
    connection = connect(Target("inner"), ssh_user.settings)
    assert says(connection) == "hello"
    assert says(connection, "echo $SSH_CONNECTION").endswith(str(servers["inner"].port))
    port = servers["outer"].port
    connection.close()
    until(lambda: not _connections_to(port), 5)  # the jump's connection ends with its host's
    connection = connect(Target("innermost"), ssh_user.settings)
    assert says(connection) == "hello"
    connection.close()
    ssh_user.known.write_text(servers["inner"].known())
    with pytest.raises(HostUnavailable, match=r"^inner: through outer: outer \(.*is not known"):
        connect(Target("inner"), ssh_user.settings)
    ssh_user.known.write_text(servers["outer"].known())
    with pytest.raises(HostUnavailable, match=r"^inner \(.* is not known: .* --ssh_accept_key="):
        connect(Target("inner"), ssh_user.settings)
    ssh_user.knows(servers["inner"].known())
    servers["inner"].end()
    with pytest.raises(HostUnavailable, match=r"^inner \(.*\) cannot be reached from outer: "):
        connect(Target("inner"), ssh_user.settings)
    with pytest.raises(HostUnavailable, match="ProxyJump leads in a circle: and-round via round"):
        connect(Target("round"), ssh_user.settings)


def test_a_jump_host_never_gets_the_password_of_the_host_behind_it(ssh_user):
    jump = ssh_user.obedient("hunter2")
    ssh_user.wants("Host inner", f"  ProxyJump 127.0.0.1:{jump.port}")
    with pytest.raises(HostUnavailable, match=r"through .*there is no key or password to try"):
        connect(Target("inner", ssh_password="hunter2"), ssh_user.settings)
    assert jump.tried == []


def _connections_to(port):
    """Return the established connections in the kernel's list."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return [f for f in fields if f[2].endswith(f":{port:04X}") and f[3] == "01"]


def test_a_proxy_command_carries_the_connection_and_ends_with_it(ssh_user, monkeypatch):
    monkeypatch.setattr(ssh, "_RETRY_PAUSES", ())
    servers = _hops(ssh_user)
    config = ssh_user.config.read_text()
    mark = ssh_user.folder / "pid"
    command = f"sh -c 'echo $$ > {mark}; exec ssh -F {ssh_user.config} -W %h:%p outer'"
    ssh_user.config.write_text(config.replace("ProxyJump outer\n", f"ProxyCommand {command}\n"))
    connection = connect(Target("inner"), ssh_user.settings)
    assert says(connection) == "hello"
    process = Path(f"/proc/{mark.read_text().strip()}")
    assert process.exists()
    connection.close()
    until(lambda: not process.exists(), 5)
    ssh_user.wants("Host inner", "  ProxyCommand echo no way out >&2")
    with pytest.raises(HostUnavailable, match="its ProxyCommand printed: no way out"):
        connect(Target("inner"), ssh_user.settings)
    assert servers


def test_a_server_that_ends_is_noticed_and_nothing_is_printed(ssh_user, capfd):
    path = ssh_user.key()
    server = ssh_user.sshd(lets_in=[path])
    connection = ssh_user.enters(server, path)
    transport = connection.transport
    for pid in procfs.descendants(server.process.pid):
        os.kill(pid, 9)
    until(lambda: not transport.is_active(), 5)
    with pytest.raises(HostUnavailable):
        connection.open_program("true")
    assert capfd.readouterr() == ("", "")


def test_many_logins_at_once_to_a_server_that_takes_few(ssh_user):
    path = ssh_user.key()
    server = ssh_user.sshd("MaxStartups 3:50:7", lets_in=[path])
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: ssh_user.enters(server, path), range(12)))
    assert {says(connection) for connection in found[::5]} == {"hello"}
