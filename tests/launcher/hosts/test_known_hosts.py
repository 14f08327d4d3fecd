"""Hosts' keys: unknown, changed, revoked or trusted at first use, as with OpenSSH."""

import re
import stat
import subprocess
from pathlib import Path

import pytest
from ssh_user import connect, needs_sshd, says

from launcher.hosts.ssh_config import HostUnavailable, Target
from launcher.plan.request import Request, UserError
from launcher.plan.settings import LauncherConfig, SshSettings

pytestmark = needs_sshd


def _fingerprint(path):
    """Return a key's fingerprint as ssh-keygen shows it to the host's administrator."""
    command = ["ssh-keygen", "-lf", path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]


def _request(ssh_user, *fingerprints):
    """Return the frontend's request with --ssh_accept_key."""
    config = LauncherConfig(ssh_config=str(ssh_user.config), ssh_accept_key=fingerprints)
    return Request(config)


def test_an_unknown_host_is_refused_until_the_key_that_was_shown_is_accepted(ssh_user):
    path = ssh_user.key()
    server = ssh_user.sshd(lets_in=[path])
    ssh_user.known.unlink()
    said = ssh_user.is_refused(HostUnavailable, server, path)
    shown = _fingerprint(server.keys["ed25519"])
    assert f"is not known: its ssh-ed25519 key is {shown}; " in said
    assert f"--ssh_accept_key={shown} accepts it" in said
    assert not ssh_user.known.exists()
    server.end()
    other = ssh_user.sshd(name="other", lets_in=[path], port=server.port)  # it took its place
    ssh_user.known.unlink()
    accepting = _request(ssh_user, shown, f"SHA256:{'x' * 43}").ssh_settings
    said = ssh_user.is_refused(HostUnavailable, other, path, settings=accepting)
    now = _fingerprint(other.keys["ed25519"])
    assert f"its ssh-ed25519 key is {now}, which --ssh_accept_key does not name" in said
    assert not ssh_user.known.exists()
    accepting = _request(ssh_user, now).ssh_settings
    assert says(ssh_user.enters(other, path, settings=accepting)) == "hello"
    assert ssh_user.known.read_text() == other.known(), "exactly this key is known from now on"
    ssh_user.enters(other, path)


def test_a_key_to_accept_must_be_a_fingerprint(ssh_user):
    for text in ("SHA256:abc", "x" * 43, "MD5:00:11", f"SHA256:{'x' * 43}="):
        with pytest.raises(UserError, match=f"^--ssh_accept_key={text}: write the fingerprint"):
            _ = _request(ssh_user, text).ssh_settings


def test_a_new_host_is_trusted_at_first_use_if_that_is_wanted(ssh_user):
    path = ssh_user.key()
    server = ssh_user.sshd(lets_in=[path])
    ssh_user.known.unlink()
    ssh_user.enters(server, path, settings=SshSettings(str(ssh_user.config), accept_new_hosts=True))
    assert ssh_user.known.read_text() == server.known()
    assert stat.S_IMODE(ssh_user.known.stat().st_mode) == 0o600
    ssh_user.enters(server, path)
    found = ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", ssh_user.known]
    assert subprocess.run(found, check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_another_key_than_before_is_refused_even_if_new_hosts_are_accepted(ssh_user):
    path = ssh_user.key()
    server = ssh_user.sshd(lets_in=[path])
    old = Path(f"{ssh_user.key('old')}.pub").read_text()
    ssh_user.known.write_text(f"# mine\n[127.0.0.1]:{server.port} {old}")
    trusting = SshSettings(str(ssh_user.config), accept_new_hosts=True)
    for settings in (ssh_user.settings, trusting):
        said = ssh_user.is_refused(HostUnavailable, server, path, settings=settings)
        assert "shows another key than before, ssh-ed25519 SHA256:" in said
        assert f"{ssh_user.known}:2 has another ssh-ed25519" in said
    command = re.search(r"`(ssh-keygen -R .*)`", said)[1]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    ssh_user.enters(server, path, settings=trusting)
    kind = ssh_user.sshd(name="another", lets_in=[path])
    rsa = Path(f"{ssh_user.key('rsa', 'rsa')}.pub").read_text()
    ssh_user.known.write_text(f"[127.0.0.1]:{kind.port} {rsa}")
    said = ssh_user.is_refused(HostUnavailable, kind, path, settings=trusting)
    assert "has another ssh-rsa" in said


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_a_host_that_is_known_by_one_kind_of_key_is_asked_for_that_one(ssh_user, kind):
    path = ssh_user.key()
    server = ssh_user.sshd(lets_in=[path], kinds=("ed25519", "rsa", "ecdsa"))
    ssh_user.known.write_text(server.known(kind))
    transport = ssh_user.enters(server, path).transport
    assert transport.get_remote_server_key().get_name() == server.listed(kind).split()[0]


def test_known_hosts_are_read_as_openssh_reads_them(ssh_user):
    path = ssh_user.key()
    server = ssh_user.sshd(lets_in=[path])
    other = Path(f"{ssh_user.key('old')}.pub").read_text()
    at = f"[127.0.0.1]:{server.port}"
    ssh_user.known.write_text(server.known(name=f"gpu1,{at}"))
    subprocess.run(
        ["ssh-keygen", "-q", "-H", "-f", ssh_user.known], check=True, capture_output=True
    )
    assert "127.0.0.1" not in ssh_user.known.read_text()
    ssh_user.enters(server, path)
    for name in ("[127.0.0.*]:*", "127.0.0.1", f"!gpu1,*:{server.port}"):
        ssh_user.known.write_text(
            f"nonsense\n{at} ssh-ed25519 %%%\n@cert-authority * {other}{server.known(name=name)}"
        )
        ssh_user.enters(server, path)
    ssh_user.known.write_text(server.known(name=f"!{at},!127.0.0.1,*"))
    assert "is not known" in ssh_user.is_refused(HostUnavailable, server, path)
    ssh_user.known.write_text(f"@cert-authority * {other}")
    assert "@cert-authority lines are not supported" in ssh_user.is_refused(
        HostUnavailable, server, path
    )
    ssh_user.known.write_text(server.known() + f"@revoked * {server.listed()}\n")
    said = ssh_user.is_refused(HostUnavailable, server, path)
    assert f"is revoked ({ssh_user.known}:2)" in said


def test_an_alias_and_several_files_of_known_hosts(ssh_user):
    path = ssh_user.key()
    server = ssh_user.sshd(lets_in=[path])
    second = ssh_user.folder / "second"
    ssh_user.wants(
        "Host gpu1",
        "  HostName 127.0.0.1",
        f"  Port {server.port}",
        "  HostKeyAlias the-one",
        f"  UserKnownHostsFile {ssh_user.folder}/none {second}",
        f"  IdentityFile {path}",
    )
    ssh_user.known.unlink()
    second.write_text(server.known())
    target = Target("gpu1")
    shown = _fingerprint(server.keys["ed25519"])
    with pytest.raises(HostUnavailable, match=f"--ssh_accept_key={re.escape(shown)} accepts it"):
        connect(target, ssh_user.settings)
    connect(target, _request(ssh_user, shown).ssh_settings).close()
    assert (ssh_user.folder / "none").read_text() == server.known(name="the-one")
    (ssh_user.folder / "none").unlink()
    second.write_text(server.known(name="the-one"))
    connection = connect(target, ssh_user.settings)
    connection.close()
    assert connection.route.port == server.port
