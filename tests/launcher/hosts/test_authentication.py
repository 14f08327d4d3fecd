"""Logins with keys of the CSV, the configuration and the agent, and with passwords."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import paramiko
import pytest
from processes import ROOT
from ssh_servers import Obedient, agent
from ssh_user import STRANGE, needs_sshd, says

from launcher.hosts import keys
from launcher.hosts.authentication import LoginRejected
from launcher.hosts.ssh_config import HostUnavailable, Target, find_route

pytestmark = needs_sshd


def _rewrite(path, *how):
    """Write a private key again, in another format or with another passphrase."""
    subprocess.run(["ssh-keygen", "-qp", *how, "-f", path], check=True, capture_output=True)


def test_the_key_of_the_csv_comes_first_then_the_configuration_then_the_agent(
    ssh_user, monkeypatch
):
    paths = [ssh_user.key(f"id{i}") for i in range(8)]
    ssh_user.wants("Host *", f"  IdentityFile {paths[0]}")
    server = ssh_user.sshd(lets_in=paths[7:])
    with agent(ssh_user.folder, *paths[1:7]) as address:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
        ssh_user.wants("Host *", "  IdentityAgent SSH_AUTH_SOCK", f"  IdentityFile {paths[0]}")
        assert says(ssh_user.enters(server, paths[7])) == "hello"
        said = ssh_user.is_refused(LoginRejected, server)
        assert f"tried {paths[0]}, the agent's id1, the agent's id2" in said
        assert "it hung up after" in said
        server.lets_in(paths[1])
        assert says(ssh_user.enters(server)) == "hello"
        ssh_user.wants("Host *", f"  IdentityAgent {address}", "  IdentitiesOnly yes")
        assert "there is no key or password to try" in ssh_user.is_refused(LoginRejected, server)
        ssh_user.wants(
            *("Host *", f"  IdentityAgent {address}", "  IdentitiesOnly yes"),
            f"  IdentityFile {paths[1]}.pub",
        )
        assert says(ssh_user.enters(server)) == "hello"


def test_an_encrypted_key_is_reported_and_others_are_tried(ssh_user, monkeypatch):
    encrypted, plain = ssh_user.key("locked", "ed25519", "a phrase"), ssh_user.key("plain")
    server = ssh_user.sshd()
    ssh_user.wants("Host *", f"  IdentityFile {plain}")
    said = ssh_user.is_refused(LoginRejected, server, encrypted)
    assert f"{encrypted} is encrypted: ssh-add it" in said
    assert f"tried {plain}" in said
    server.lets_in(plain)
    ssh_user.enters(server, encrypted)
    server.lets_in(encrypted)
    _rewrite(encrypted, "-P", "a phrase", "-N", "")
    with agent(ssh_user.folder, encrypted) as address:
        _rewrite(encrypted, "-N", "again")
        Path(f"{encrypted}.pub").unlink()
        ssh_user.wants("Host *", f"  IdentityAgent {address}", "  IdentitiesOnly yes")
        assert says(ssh_user.enters(server, encrypted)) == "hello"


def test_key_files_that_are_missing_or_no_keys_are_reported(ssh_user):
    server = ssh_user.sshd()
    said = ssh_user.is_refused(HostUnavailable, server, ssh_user.folder / "none")
    assert f"ssh_key_path {ssh_user.folder}/none" in said
    assert "there is no such file" in said
    (ssh_user.folder / "text").write_text("not a key")
    for path in (f"{ssh_user.key('mine')}.pub", f"{ssh_user.folder}/text"):
        said = ssh_user.is_refused(LoginRejected, server, path)
        assert f"{path}: it is no private key" in said
    other = ssh_user.key("pem", "rsa")
    _rewrite(other, "-m", "PKCS8", "-N", "")
    server.lets_in(other)
    Path(f"{other}.pub").unlink()
    said = ssh_user.is_refused(LoginRejected, server, other)
    advised = re.search(r"`(ssh-keygen.*?)`", said)[1].split()
    subprocess.run([*advised, "-N", ""], check=True, capture_output=True)
    ssh_user.enters(server, other)
    classic = ssh_user.key("classic", "rsa")
    server.lets_in(classic)
    _rewrite(classic, "-m", "PEM", "-N", "")
    assert "BEGIN RSA" in classic.read_text()
    ssh_user.enters(server, classic)


def test_a_certificate_beside_a_key_comes_first_and_then_the_key_alone(ssh_user):
    path, authority = ssh_user.key(), ssh_user.key("authority")
    command = ["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "root,me", f"{path}.pub"]
    subprocess.run(command, check=True, capture_output=True)
    name = find_route(Target("x"), ssh_user.settings).username
    (ssh_user.folder / "principals").write_text(f"{name}\nroot\n")
    server = ssh_user.sshd(
        f"TrustedUserCAKeys {authority}.pub",
        f"AuthorizedPrincipalsFile {ssh_user.folder}/principals",
    )
    connection = ssh_user.enters(server, path)
    assert (says(connection), connection.login) == ("hello", f"{path}-cert.pub")
    other = ssh_user.sshd(name="other", lets_in=[path])
    assert ssh_user.enters(other, path).login == str(path)


@pytest.mark.parametrize("methods", ["password", "publickey,keyboard-interactive"])
def test_a_password_of_any_characters_is_accepted_by_either_method(ssh_user, methods):
    server = ssh_user.obedient(STRANGE, methods=methods)
    connection = ssh_user.enters(server, password=STRANGE)
    assert server.tried == [STRANGE]
    assert STRANGE not in f"{connection} {connection!r}"
    assert connection.transport.is_authenticated()


def test_a_wrong_password_is_reported_and_never_shown(ssh_user, caplog):
    server = ssh_user.obedient("right")
    said = ssh_user.is_refused(LoginRejected, server, password="hunter2")
    name = find_route(Target("x"), ssh_user.settings).username
    assert f"127.0.0.1:{server.port}) does not let {name} in: tried the password" in said
    server = ssh_user.obedient("right", methods="publickey")
    said = ssh_user.is_refused(LoginRejected, server, password="hunter2")
    assert "it accepts no password; it accepts publickey;" in said
    server = ssh_user.obedient("right", methods="keyboard-interactive", prompts=2)
    said = ssh_user.is_refused(LoginRejected, server, password="hunter2")
    assert "it also asks 'Question 0:'; it also asks 'Question 1:'" in said
    assert server.tried == [""], "a password is no answer to many questions"
    assert "hunter2" not in caplog.text


def test_a_server_that_wants_a_key_and_a_password_gets_both(ssh_user):
    path = ssh_user.key()

    class Both(Obedient):
        def check_auth_publickey(self, username, key):
            good = super().check_auth_publickey(username, key) == paramiko.AUTH_SUCCESSFUL
            return paramiko.AUTH_PARTIALLY_SUCCESSFUL if good else paramiko.AUTH_FAILED

    server = Both("both", methods="publickey,password", keys=[path])
    ssh_user.knows(server.known())
    try:
        ssh_user.enters(server, path, "both")
        assert server.tried == ["a key", "both"]
        assert "publickey" in ssh_user.is_refused(LoginRejected, server, path)
    finally:
        server.end()


@pytest.fixture
def terminal(monkeypatch):
    """Stand in for a user at a terminal: return (answers to give, questions asked)."""
    answers, asked = [], []
    monkeypatch.setattr(keys, "_unlocked", {})
    monkeypatch.setattr(keys, "_has_terminal", lambda: True)
    monkeypatch.setattr(keys.termios, "tcgetattr", lambda file: [])
    monkeypatch.setattr(keys.atexit, "register", lambda *arguments: None)

    def answer(question):
        asked.append(question)
        return answers.pop(0)

    monkeypatch.setattr(keys.getpass, "getpass", answer)
    return answers, asked


def test_the_passphrase_of_a_key_is_asked_for_once_for_all_hosts(ssh_user, terminal):
    answers, asked = terminal
    encrypted = ssh_user.key("locked", "ed25519", "a phrase")
    servers = [ssh_user.sshd(name=f"sshd{i}", lets_in=[encrypted]) for i in range(2)]
    answers += ["no phrase", "a phrase"]
    for server in servers:
        assert says(ssh_user.enters(server, encrypted)) == "hello"
    assert len(asked) == 2
    assert asked[0].startswith(f"passphrase of {encrypted}")
    servers[0].lets_in(ssh_user.key("another"))
    said = ssh_user.is_refused(LoginRejected, servers[0], encrypted)
    assert f"tried {encrypted}; " in said
    assert "is encrypted" not in said
    assert len(asked) == 2


_ASK = """
import sys
from launcher.hosts import keys
print([key.name for key in keys.unlock(sys.argv[1])])
"""


def test_a_passphrase_is_read_from_the_terminal_without_showing_it(ssh_user):
    encrypted = ssh_user.key("locked", "ed25519", "a phrase")
    child, terminal = pty.fork()
    if not child:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", _ASK, str(encrypted)])
    shown = b""
    with contextlib.suppress(OSError):  # raised at the end of what a terminal shows
        while part := os.read(terminal, 1000):
            if b"out): " in part:
                os.write(terminal, b"a phrase\n")
            shown += part
    os.close(terminal)
    os.waitpid(child, 0)
    assert f"['{encrypted}']" in shown.decode()
    assert b"a phrase" not in shown


def test_without_a_terminal_nothing_is_asked(ssh_user):
    encrypted = ssh_user.key("locked", "ed25519", "a phrase")
    command = [sys.executable, "-c", _ASK, encrypted]
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    assert subprocess.check_output(command, cwd=ROOT, text=True, **streams) == "[]\n"
