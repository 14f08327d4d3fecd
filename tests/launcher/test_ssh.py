"""SSH as users have it: their configuration, keys, agent, jumps and passwords, to real servers."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest
from conftest import ROOT, free_port
from ssh_servers import SSHD, Obedient, Sshd, agent, key, saying

from launcher import known_hosts, ssh, ssh_keys
from launcher.known_hosts import HostKeyRefused
from launcher.ssh import Credential, Settings, Target, Unreachable, connect, connect_with, route
from launcher.ssh_login import NotLetIn

pytestmark = pytest.mark.skipif(not SSHD, reason="there is no sshd here: openssh-server has it")
STRANGE = 'it\'s "a" pass wörd; $(x) \\'


class User:
    """With an SSH configuration of their own, and servers that end with the test."""

    def __init__(self, folder):
        self.folder, self.known, self.config = folder, folder / "known hosts", folder / "config"
        self.settings = Settings(str(self.config))
        self.wants()
        self._ends = []

    def wants(self, *lines):
        """In the configuration; what stands first in it counts."""
        common = [
            "Host *",
            f'UserKnownHostsFile "{self.known}"',
            "GlobalKnownHostsFile none",
            "IdentityFile none",
            "IdentityAgent none",
        ]
        self.config.write_text("\n".join([*lines, *common]) + "\n")

    def knows(self, *lines):
        """Hosts, besides those it knows."""
        with self.known.open("a") as file:
            file.writelines(lines)

    def sshd(self, *options, name="sshd", lets_in=(), **more):
        """Known, until somebody changes that."""
        server = self._to_end(Sshd(self.folder / name, *options, **more))
        server.lets_in(*lets_in)
        self.knows(server.known(next(iter(server.keys))))
        return server

    def obedient(self, *arguments, **more):
        """Likewise."""
        server = self._to_end(Obedient(*arguments, **more))
        self.knows(server.known())
        return server

    def key(self, name="id", *arguments):
        return key(self.folder / name, *arguments)

    def enters(self, server, path="", password="", ip="127.0.0.1", settings=None):
        """The connection to a server; closed with the test."""
        target = Target(ip, server.port, "", password, str(path))
        connection = connect(target, settings or self.settings)
        self._ends.append(connection.client.close)
        return connection

    def is_refused(self, kind, server, *arguments, **more):
        """What is said: one sentence, about the host."""
        with pytest.raises(kind) as caught:
            self.enters(server, *arguments, **more)
        said = str(caught.value)
        assert "\n" not in said
        return said

    def end(self):
        for end in reversed(self._ends):
            end()

    def _to_end(self, server):
        self._ends.append(server.end)
        return server


@pytest.fixture
def user(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = User(tmp_path)
    yield made
    made.end()


def _says(client, command="echo hello"):
    return client.exec_command(command, timeout=10)[1].read().decode().strip()


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_key_of_the_csv_lets_in(user, kind):
    path = user.key("id", kind)
    server = user.sshd(lets_in=[path])
    connection = user.enters(server, path)
    assert _says(connection.client) == "hello"
    assert connection.credential.key == path.read_text()
    assert connection.credential.host_key == server.listed()


@pytest.mark.parametrize("resolver", ["ssh", "paramiko"])
def test_the_configuration_says_the_way_and_the_csv_wins(user, monkeypatch, resolver):
    if resolver == "paramiko":
        monkeypatch.setenv("PATH", str(user.folder))
    (user.folder / "more").write_text('Host gpu*\n  User them\n  IdentityFile "~/my keys/%r_%h"\n')
    user.wants(
        f"Include {user.folder}/more",
        "Host gpu1",
        "  HostName 10.9.8.7",
        "  Port 2222",
        "  HostKeyAlias one",
        "  IdentitiesOnly yes",
        "  IdentityAgent ~/agent.sock",
        "  ProxyJump me@first:33,second",
        "  ConnectTimeout 3",
        f"  UserKnownHostsFile {user.folder}/a ~/b",
        "Host gpu2",
        "  ProxyCommand carry %h %p %r",
        "  StrictHostKeyChecking accept-new",
        "  AddressFamily inet",
    )
    home = os.path.expanduser("~")
    one = route(Target("gpu1"), user.settings)
    assert (one.host, one.address, one.port, one.username) == ("gpu1", "10.9.8.7", 2222, "them")
    assert one.identity_files[0] == f"{home}/my keys/them_10.9.8.7"
    assert (one.identities_only, one.agent) == (True, f"{home}/agent.sock")
    assert one.proxy_jump == ("me@first:33", "second")
    assert one.known_hosts == (f"{user.folder}/a", f"{home}/b")
    assert (one.host_key_alias, one.connect_timeout, one.accept_new) == ("one", 3, False)
    assert one.shown == "gpu1 (10.9.8.7:2222)"
    told = Target("gpu1", 44, "me", "secret", "/a/key")
    told_route = route(told, user.settings)
    assert told_route[:5] == ("gpu1", "10.9.8.7", 44, "me", "/a/key")
    assert told_route.identity_files[0] == f"{home}/my keys/me_10.9.8.7"
    two = route(Target("gpu2", ssh_username="me"), user.settings)
    assert two.proxy_command == "carry gpu2 22 me"
    assert (two.accept_new, two.family, two.shown) == (True, socket.AF_INET, "gpu2")
    assert route(Target("x"), Settings(str(user.config), True)).accept_new
    assert "secret" not in f"{told} {told!r} {told_route}"


def test_a_configuration_that_cannot_be_read_is_said(user, monkeypatch):
    user.wants("Hots gpu1")
    for path, word in ((user.config, "Bad configuration option"), (user.folder / "no", "No such")):
        with pytest.raises(Unreachable, match=rf"^gpu1: the SSH configuration .*{word}"):
            route(Target("gpu1"), Settings(str(path)))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unreachable, match="there is no SSH configuration"):
        route(Target("gpu1"), Settings(str(user.folder / "no")))


def test_a_stranger_is_refused_until_the_command_that_is_said_accepts_it(user):
    path = user.key()
    server = user.sshd(lets_in=[path])
    user.known.unlink()
    said = user.is_refused(HostKeyRefused, server, path)
    print_of = subprocess.run(
        ["ssh-keygen", "-lf", server.keys["ed25519"]], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert f"is not known: its ssh-ed25519 key is {print_of}; " in said
    assert "--ssh_accept_new_hosts" in said
    assert not user.known.exists()
    command = re.search(r"`(ssh-keyscan .*)`", said)[1]
    subprocess.run(command, shell=True, check=True, stderr=subprocess.DEVNULL)
    assert _says(user.enters(server, path).client) == "hello"


def test_a_new_host_is_trusted_at_first_sight_where_that_is_wanted(user):
    path = user.key()
    server = user.sshd(lets_in=[path])
    user.known.unlink()
    user.enters(server, path, settings=Settings(str(user.config), accept_new_hosts=True))
    assert user.known.read_text() == server.known()
    assert stat.S_IMODE(user.known.stat().st_mode) == 0o600
    user.enters(server, path)
    found = ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", user.known]
    assert subprocess.run(found, check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_many_who_meet_hosts_at_the_same_moment_write_whole_lines_once(user):
    user.wants("Host *", "  HashKnownHosts yes")
    user.known.write_text("old.example ssh-ed25519 AAAA")  # no line's end, as editors leave it
    host_keys = [paramiko.ECDSAKey.generate() for _ in range(4)]
    program = (
        "import sys, paramiko\n"
        "from launcher import known_hosts, ssh\n"
        "way = ssh.route(ssh.Target(sys.argv[1]), ssh.Settings(sys.argv[2], True))\n"
        "key = paramiko.RSAKey.generate(1024)\n"
        "known_hosts.accept(way, key)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, "other.example", user.config], cwd=ROOT
    )
    ways = [route(Target(f"node-{i}"), Settings(str(user.config), True)) for i in range(25)]

    def meet(number):
        known_hosts.accept(ways[number % 25], host_keys[number % 25 % 4])

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(meet, range(200)))
    assert other.wait(20) == 0
    lines = user.known.read_text().splitlines()
    assert len(lines) == 1 + 25 + 1
    assert "node-" not in user.known.read_text(), "names are hidden"
    for name in ("node-7", "node-24", "other.example"):
        assert len(list(known_hosts.entries([str(user.known)], name))) == 1
        found = ["ssh-keygen", "-F", name, "-f", user.known]
        assert subprocess.run(found, check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_another_key_than_before_is_refused_even_where_strangers_are_not(user):
    path = user.key()
    server = user.sshd(lets_in=[path])
    old = Path(f"{user.key('old')}.pub").read_text()
    user.known.write_text(f"# mine\n[127.0.0.1]:{server.port} {old}")
    trusting = Settings(str(user.config), accept_new_hosts=True)
    for settings in (user.settings, trusting):
        said = user.is_refused(HostKeyRefused, server, path, settings=settings)
        assert "shows another key than before, ssh-ed25519 SHA256:" in said
        assert f"{user.known}:2 has another ssh-ed25519" in said
    command = re.search(r"`(ssh-keygen -R .*)`", said)[1]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    user.enters(server, path, settings=trusting)
    kind = user.sshd(name="another", lets_in=[path])
    rsa = Path(f"{user.key('rsa', 'rsa')}.pub").read_text()
    user.known.write_text(f"[127.0.0.1]:{kind.port} {rsa}")
    said = user.is_refused(HostKeyRefused, kind, path, settings=trusting)
    assert "has another ssh-rsa" in said


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_a_host_that_is_known_by_one_kind_of_key_is_asked_for_that_one(user, kind):
    path = user.key()
    server = user.sshd(lets_in=[path], kinds=("ed25519", "rsa", "ecdsa"))
    user.known.write_text(server.known(kind))
    assert user.enters(server, path).credential.host_key == server.listed(kind)


def test_known_hosts_are_read_as_openssh_reads_them(user):
    path = user.key()
    server = user.sshd(lets_in=[path])
    other = Path(f"{user.key('old')}.pub").read_text()
    at = f"[127.0.0.1]:{server.port}"
    user.known.write_text(server.known(name=f"gpu1,{at}"))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", user.known], check=True, capture_output=True)
    assert "127.0.0.1" not in user.known.read_text()
    user.enters(server, path)
    for name in ("[127.0.0.*]:*", "127.0.0.1", f"!gpu1,*:{server.port}"):
        user.known.write_text(
            f"nonsense\n{at} ssh-ed25519 %%%\n@cert-authority * {other}{server.known(name=name)}"
        )
        user.enters(server, path)
    user.known.write_text(server.known(name=f"!{at},!127.0.0.1,*"))
    assert "is not known" in user.is_refused(HostKeyRefused, server, path)
    user.known.write_text(f"@cert-authority * {other}")
    assert "@cert-authority lines are not used" in user.is_refused(HostKeyRefused, server, path)
    user.known.write_text(server.known() + f"@revoked * {server.listed()}\n")
    said = user.is_refused(HostKeyRefused, server, path)
    assert f"is revoked ({user.known}:2)" in said


def test_an_alias_and_several_files_of_known_hosts(user):
    path = user.key()
    server = user.sshd(lets_in=[path])
    second = user.folder / "second"
    user.wants(
        "Host gpu1",
        "  HostName 127.0.0.1",
        f"  Port {server.port}",
        "  HostKeyAlias the-one",
        f"  UserKnownHostsFile {user.folder}/none {second}",
        f"  IdentityFile {path}",
    )
    user.known.unlink()
    second.write_text(server.known())
    target = Target("gpu1")
    with pytest.raises(HostKeyRefused, match="`ssh gpu1` by hand asks once"):
        connect(target, user.settings)
    second.write_text(server.known(name="the-one"))
    connection = connect(target, user.settings)
    connection.client.close()
    assert connection.credential.port == server.port


def test_the_key_of_the_csv_comes_first_then_the_configuration_then_the_agent(user, monkeypatch):
    paths = [user.key(f"id{i}") for i in range(8)]
    user.wants("Host *", f"  IdentityFile {paths[0]}")
    server = user.sshd(lets_in=paths[7:])
    with agent(user.folder, *paths[1:7]) as address:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
        user.wants("Host *", "  IdentityAgent SSH_AUTH_SOCK", f"  IdentityFile {paths[0]}")
        assert _says(user.enters(server, paths[7]).client) == "hello"
        said = user.is_refused(NotLetIn, server)
        assert f"tried {paths[0]}, the agent's id1, the agent's id2" in said
        assert "it hung up after" in said
        server.lets_in(paths[1])
        assert user.enters(server).credential.key == "", "the agent keeps it"
        user.wants("Host *", f"  IdentityAgent {address}", "  IdentitiesOnly yes")
        assert "there was nothing to try" in user.is_refused(NotLetIn, server)
        user.wants(
            *("Host *", f"  IdentityAgent {address}", "  IdentitiesOnly yes"),
            f"  IdentityFile {paths[1]}.pub",
        )
        assert _says(user.enters(server).client) == "hello"


def test_too_many_keys_do_not_lock_out_the_password(user):
    paths = [user.key(f"id{i}") for i in range(4)]
    user.wants("Host *", *(f"  IdentityFile {path}" for path in paths))
    server = user.obedient(STRANGE, most=3)
    credential = user.enters(server, password=STRANGE).credential
    assert server.tried == ["a key"] * 3 + [STRANGE]
    assert (credential.password, credential.key) == (STRANGE, "")
    said = user.is_refused(NotLetIn, server)
    assert "it hung up after 3 tries (name the one right key in ssh_key_path" in said


def test_an_encrypted_key_is_said_and_others_are_tried(user, monkeypatch):
    encrypted, plain = user.key("locked", "ed25519", "a phrase"), user.key("plain")
    server = user.sshd()
    user.wants("Host *", f"  IdentityFile {plain}")
    said = user.is_refused(NotLetIn, server, encrypted)
    assert f"{encrypted} is encrypted: ssh-add it" in said
    assert f"tried {plain}" in said
    server.lets_in(plain)
    user.enters(server, encrypted)
    server.lets_in(encrypted)
    subprocess.run(["ssh-keygen", "-qp", "-P", "a phrase", "-N", "", "-f", encrypted], check=True)
    with agent(user.folder, encrypted) as address:
        subprocess.run(["ssh-keygen", "-qp", "-N", "again", "-f", encrypted], check=True)
        Path(f"{encrypted}.pub").unlink()
        user.wants("Host *", f"  IdentityAgent {address}", "  IdentitiesOnly yes")
        assert _says(user.enters(server, encrypted).client) == "hello"


def test_key_files_that_are_not_there_or_no_keys_are_said(user):
    server = user.sshd()
    said = user.is_refused(Unreachable, server, user.folder / "none")
    assert said.startswith(f"127.0.0.1 (127.0.0.1:{server.port}): ssh_key_path {user.folder}/none")
    assert "there is no such file" in said
    (user.folder / "text").write_text("not a key")
    said = user.is_refused(NotLetIn, server, user.folder / "text")
    assert f"{user.folder}/text is no private key that can be read" in said
    other = user.key("pem", "rsa")
    subprocess.run(
        ["ssh-keygen", "-qp", "-m", "PKCS8", "-N", "", "-f", other], check=True, capture_output=True
    )
    server.lets_in(other)
    Path(f"{other}.pub").unlink()
    said = user.is_refused(NotLetIn, server, other)
    subprocess.run(
        [*re.search(r"`(ssh-keygen.*?)`", said)[1].split(), "-N", ""],
        check=True,
        capture_output=True,
    )
    user.enters(server, other)
    server.lets_in(user.key("classic", "rsa"))
    classic = user.folder / "classic"
    subprocess.run(
        ["ssh-keygen", "-qp", "-m", "PEM", "-N", "", "-f", classic], check=True, capture_output=True
    )
    assert "BEGIN RSA" in classic.read_text()
    user.enters(server, classic)


def test_a_certificate_beside_a_key_lets_in_and_travels_with_it(user):
    path, authority = user.key(), user.key("authority")
    command = ["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "root,me", f"{path}.pub"]
    subprocess.run(command, check=True, capture_output=True)
    name = route(Target("x"), user.settings).username
    (user.folder / "principals").write_text(f"{name}\nroot\n")
    server = user.sshd(
        f"TrustedUserCAKeys {authority}.pub", f"AuthorizedPrincipalsFile {user.folder}/principals"
    )
    connection = user.enters(server, path)
    assert _says(connection.client) == "hello"
    with connect_with(connection.credential) as client:
        assert _says(client) == "hello"


@pytest.mark.parametrize("methods", ["password", "publickey,keyboard-interactive"])
def test_a_password_of_any_characters_lets_in_by_either_way(user, methods):
    server = user.obedient(STRANGE, methods=methods)
    connection = user.enters(server, password=STRANGE)
    assert server.tried == [STRANGE]
    assert STRANGE not in f"{connection} {connection!r}"
    with connect_with(connection.credential) as client:
        assert client.get_transport().is_authenticated()


def test_a_wrong_password_is_said_and_never_shown(user, caplog):
    server = user.obedient("right")
    said = user.is_refused(NotLetIn, server, password="hunter2")
    name = route(Target("x"), user.settings).username
    assert said == (
        f"127.0.0.1 (127.0.0.1:{server.port}) does not let {name} in: tried the password; it takes "
        f"publickey or password; mend ssh_username, ssh_key_path or ssh_password"
    )
    server = user.obedient("right", methods="publickey")
    said = user.is_refused(NotLetIn, server, password="hunter2")
    assert "there was nothing to try; it takes no password; it takes publickey;" in said
    server = user.obedient("right", methods="keyboard-interactive", prompts=2)
    said = user.is_refused(NotLetIn, server, password="hunter2")
    assert "it also asks 'Question 0:'; it also asks 'Question 1:'" in said
    assert server.tried == [""], "a password is no answer to many questions"
    assert "hunter2" not in caplog.text


def test_a_server_that_wants_a_key_and_a_password_gets_both(user):
    path = user.key()

    class Both(Obedient):
        def check_auth_publickey(self, username, key):
            good = super().check_auth_publickey(username, key) == paramiko.AUTH_SUCCESSFUL
            return paramiko.AUTH_PARTIALLY_SUCCESSFUL if good else paramiko.AUTH_FAILED

    server = Both("both", methods="publickey,password", keys=[path])
    user.knows(server.known())
    try:
        credential = user.enters(server, path, "both").credential
        assert (credential.key, credential.password) == (path.read_text(), "both")
        assert "publickey" in user.is_refused(NotLetIn, server, path)
    finally:
        server.end()


def _takes(begun):
    return time.monotonic() - begun


@pytest.mark.parametrize(
    ("words", "what"),
    [(b"", "says nothing"), (b"SSH-2.0-Silent\r\n", "does not finish its handshake")],
)
def test_a_server_that_falls_silent_costs_seconds_and_is_said(user, monkeypatch, words, what):
    monkeypatch.setattr(ssh, "_HANDSHAKE_SECONDS", 0.6)
    with saying(words) as port:
        begun = time.monotonic()
        with pytest.raises(Unreachable, match=rf"takes the connection, and {what} for 0\.6 s"):
            connect(Target("127.0.0.1", port), user.settings)
        assert _takes(begun) < 3


def test_a_server_that_does_not_answer_a_login_is_said(user, monkeypatch):
    monkeypatch.setattr(ssh, "_ANSWER_SECONDS", 0.6)

    class Slow(Obedient):
        def check_auth_password(self, username, password):
            time.sleep(2)
            return paramiko.AUTH_FAILED

    server = Slow()
    user.knows(server.known())
    said = user.is_refused(Unreachable, server, password="x")
    server.end()
    assert "gave no answer to the login" in said


def test_a_server_that_hangs_up_is_tried_again_for_seconds_then_said(user, monkeypatch):
    monkeypatch.setattr(ssh, "_PAUSES", (0.1, 0.2))
    for words in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        with (
            saying(words, then_close=True) as port,
            pytest.raises(Unreachable, match="hangs up before it says that it is an SSH server"),
        ):
            connect(Target("127.0.0.1", port), user.settings)
    path = user.key()
    port, log = free_port(), []

    def first_busy_then_well():
        with socket.create_server(("127.0.0.1", port)) as busy:
            busy.accept()[0].close()
            log.append("hung up")
        server = Obedient(keys=[path], port=port)
        log.append(server)

    thread = threading.Thread(target=first_busy_then_well)
    thread.start()
    user.wants("Host *", "  StrictHostKeyChecking accept-new")
    while True:  # until it listens
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
    thread.join()
    user.enters(log[1], path)
    log[1].end()


def test_hosts_that_cannot_be_reached_are_said(user):
    port = free_port()
    with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port}\) refuses connections"):
        connect(Target("127.0.0.1", port), user.settings)
    with pytest.raises(
        Unreachable, match=r"^no\.such\.host\.invalid: nobody knows a host no\.such"
    ):
        connect(Target("no.such.host.invalid"), user.settings)
    with pytest.raises(Unreachable, match="'-oProxyCommand=x' is no host name"):
        connect(Target("-oProxyCommand=x"), user.settings)
    user.wants("Host *", "  ConnectTimeout 1")
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:  # nobody takes them, and there is no room for more
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="gave no answer in 1 s"):
            connect(Target("127.0.0.1", port), user.settings)
        assert _takes(begun) < 3
        for each in waiting:
            each.close()


def _hops(user, **more):
    """Two servers: `inner` is only known by its name of the configuration, behind `outer`."""
    keys = {name: user.key(f"key_{name}") for name in ("outer", "inner")}
    servers = {name: user.sshd(name=name, lets_in=[path], **more) for name, path in keys.items()}
    user.wants(
        *("Host outer", "  HostName 127.0.0.1", f"  Port {servers['outer'].port}"),
        f"  IdentityFile {keys['outer']}",
        *("Host inner", "  HostName 127.0.0.1", f"  Port {servers['inner'].port}"),
        *(f"  IdentityFile {keys['inner']}", "  ProxyJump outer"),
        *("Host innermost", "  HostName 127.0.0.1", f"  Port {servers['outer'].port}"),
        *(f"  IdentityFile {keys['outer']}", "  ProxyJump outer,inner"),
        *("Host round", "  ProxyJump and-round", "Host and-round", "  ProxyJump round"),
    )
    return servers


def test_a_host_is_reached_through_others_each_with_its_own_key_and_host_key(user):
    servers = _hops(user)
    connection = connect(Target("inner"), user.settings)
    assert _says(connection.client) == "hello"
    assert _says(connection.client, "echo $SSH_CONNECTION").endswith(str(servers["inner"].port))
    port = servers["outer"].port
    connection.client.close()
    _until(lambda: not _connections_to(port), "the jump's connection ends with its host's")
    connection = connect(Target("innermost"), user.settings)
    assert _says(connection.client) == "hello"
    connection.client.close()
    with connect_with(connection.credential) as client:
        assert _says(client) == "hello"
    user.known.write_text(servers["inner"].known())
    with pytest.raises(HostKeyRefused, match=r"^inner: by way of outer: outer \(.*is not known"):
        connect(Target("inner"), user.settings)
    user.known.write_text(servers["outer"].known())
    with pytest.raises(HostKeyRefused, match=r"^inner \(.* is not known: .* `ssh inner` by hand"):
        connect(Target("inner"), user.settings)
    user.knows(servers["inner"].known())
    servers["inner"].end()
    with pytest.raises(Unreachable, match=r"^inner \(.*\) cannot be reached from outer: "):
        connect(Target("inner"), user.settings)
    with pytest.raises(Unreachable, match="ProxyJump goes round in circles: and-round via round"):
        connect(Target("round"), user.settings)


def test_a_jump_is_never_told_the_password_of_the_host_behind_it(user):
    jump = user.obedient("hunter2")
    user.wants("Host inner", f"  ProxyJump 127.0.0.1:{jump.port}")
    with pytest.raises(
        NotLetIn, match=r"by way of .*there was nothing to try.* mend User or Ident"
    ):
        connect(Target("inner", ssh_password="hunter2"), user.settings)
    assert jump.tried == []


def _connections_to(port):
    """Established ones, as the kernel lists them."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return [f for f in fields if f[2].endswith(f":{port:04X}") and f[3] == "01"]


def _until(good, what):
    until = time.monotonic() + 5
    while not good():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def test_a_proxy_command_carries_the_connection_and_ends_with_it(user, monkeypatch):
    monkeypatch.setattr(ssh, "_PAUSES", ())
    servers = _hops(user)
    config = user.config.read_text()
    mark = user.folder / "pid"
    command = f"sh -c 'echo $$ > {mark}; exec ssh -F {user.config} -W %h:%p outer'"
    user.config.write_text(config.replace("ProxyJump outer\n", f"ProxyCommand {command}\n"))
    connection = connect(Target("inner"), user.settings)
    assert _says(connection.client) == "hello"
    process = Path(f"/proc/{mark.read_text().strip()}")
    assert process.exists()
    connection.client.close()
    _until(lambda: not process.exists(), "it goes on")
    user.wants("Host inner", "  ProxyCommand echo no way out >&2")
    with pytest.raises(Unreachable, match="its ProxyCommand says: no way out"):
        connect(Target("inner"), user.settings)
    assert servers


def test_another_machine_logs_in_with_the_credential_alone(user):
    path = user.key()
    server = user.sshd(lets_in=[path])
    credential = user.enters(server, path).credential
    sent = json.dumps(credential)
    program = (
        "import json, sys\n"
        "from launcher.ssh import Credential, connect_with\n"
        "with connect_with(Credential(*json.load(sys.stdin))) as client:\n"
        "    print(client.exec_command('echo hello')[1].read())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        input=sent,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(user.folder / "other")},
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("b'hello\\n'\n", "", 0)
    assert path.read_text().splitlines()[1] not in f"{credential} {credential!r}"
    other = user.sshd(name="other")
    for wrong in (other.listed(), other.listed().replace("ssh-ed25519", "ssh-rsa")):
        with pytest.raises(HostKeyRefused, match="shows another key here, ssh-ed25519 SHA256:"):
            connect_with(credential._replace(host_key=wrong))
    with pytest.raises(NotLetIn, match="there was nothing to try"):
        connect_with(credential._replace(key="", password=""))


def test_where_the_agent_let_us_in_another_machine_needs_its_own(user, monkeypatch):
    path = user.key()
    server = user.sshd(lets_in=[path])
    with agent(user.folder, path) as address:
        user.wants("Host *", f"  IdentityAgent {address}")
        credential = user.enters(server).credential
        assert (credential.key, credential.password) == ("", "")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
        with connect_with(credential) as client:
            assert _says(client) == "hello"


def test_an_agent_that_does_not_sign_costs_one_try(user, monkeypatch):
    held, other = user.key("held"), user.key("other")
    server = user.sshd(lets_in=[held, other])
    real = ssh_keys.Agent.get_keys
    with agent(user.folder, held) as address:
        user.wants("Host *", f"  IdentityAgent {address}", f"  IdentityFile {held}.pub")

        def emptied(self):
            keys = real(self)
            environment = os.environ | {"SSH_AUTH_SOCK": str(address)}
            subprocess.run(["ssh-add", "-qD"], env=environment, check=True, capture_output=True)
            return keys

        monkeypatch.setattr(ssh_keys.Agent, "get_keys", emptied)
        said = user.is_refused(NotLetIn, server)
    assert "tried the agent's held; it takes publickey" in said


def test_a_server_that_ends_is_noticed_and_nothing_is_printed(user, capfd):
    path = user.key()
    server = user.sshd(lets_in=[path])
    connection = user.enters(server, path)
    transport = connection.client.get_transport()
    assert transport.packetizer._Packetizer__keepalive_interval == 15
    for pid in subprocess.run(
        ["ps", "--ppid", str(server.process.pid), "-o", "pid="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split():
        os.kill(int(pid), 9)
    _until(lambda: not transport.is_active(), "it is not noticed")
    with pytest.raises(paramiko.SSHException):
        connection.client.exec_command("true")
    assert capfd.readouterr() == ("", "")


def test_many_logins_at_once_to_a_server_that_takes_few(user):
    path = user.key()
    server = user.sshd("MaxStartups 5:50:20", lets_in=[path])
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda _: user.enters(server, path), range(32)))
    assert {_says(connection.client) for connection in found[::8]} == {"hello"}
    assert repr(Credential(*found[0].credential)).count("***") == 1
