"""The route to a host, from an SSH configuration and a row of the CSV."""

import os
import pwd
import socket

import pytest
from ssh_user import needs_sshd

from launcher.hosts import ssh_config
from launcher.hosts.ssh_config import HostUnavailable, Target, find_route
from launcher.plan.settings import SshSettings

pytestmark = needs_sshd


def test_the_route_is_the_configurations_unless_the_csv_differs(ssh_user, monkeypatch):
    # OpenSSH expands ~ by the account's home, whatever HOME is.
    home = pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.setenv("HOME", str(ssh_user.folder))
    (ssh_user.folder / "more").write_text(
        'Host gpu*\n  User them\n  IdentityFile "~/my keys/%r_%h"\n'
    )
    ssh_user.wants(
        f"Include {ssh_user.folder}/more",
        "Host gpu1",
        "  HostName 10.9.8.7",
        "  Port 2222",
        "  HostKeyAlias one",
        "  IdentitiesOnly yes",
        "  IdentityAgent ~/agent.sock",
        "  ProxyJump me@first:33,second",
        "  ConnectTimeout 3",
        f"  UserKnownHostsFile {ssh_user.folder}/a ~/b",
        "Host gpu2",
        "  ProxyCommand ~/carry %h %p %r",
        "  StrictHostKeyChecking accept-new",
        "  AddressFamily inet",
    )
    one = find_route(Target("gpu1"), ssh_user.settings)
    assert (one.host, one.address, one.port, one.username) == ("gpu1", "10.9.8.7", 2222, "them")
    assert one.identity_files[0] == f"{home}/my keys/them_10.9.8.7"
    assert (one.identities_only, one.agent) == (True, f"{home}/agent.sock")
    assert (one.hop, one.jump.address, one.jump.port) == ("second", "second", 22)
    assert one.jump.hop == "me@first:33"
    assert one.jump.jump[1:4] == ("first", 33, "me")
    assert one.jump.jump.jump is None
    assert one.known_hosts == (f"{ssh_user.folder}/a", f"{home}/b")
    assert (one.host_key_alias, one.connect_timeout, one.accept_new) == ("one", 3, False)
    assert one.display_name == "gpu1 (10.9.8.7:2222)"
    assert find_route(Target("gpu1", ssh_key_path="~/k"), ssh_user.settings).key_path == f"{home}/k"
    with pytest.raises(HostUnavailable, match=rf"SSH configuration.* {home}/no-such-file"):
        find_route(Target("gpu1"), SshSettings("~/no-such-file"))
    told = Target("gpu1", 44, "me", "secret", "/a/key")
    told_route = find_route(told, ssh_user.settings)
    assert told_route[:5] == ("gpu1", "10.9.8.7", 44, "me", "/a/key")
    assert told_route.identity_files[0] == f"{home}/my keys/me_10.9.8.7"
    two = find_route(Target("gpu2", ssh_username="me"), ssh_user.settings)
    assert two.proxy_command == "~/carry gpu2 22 me", "its shell expands ~"
    assert (two.accept_new, two.family, two.display_name) == (True, socket.AF_INET, "gpu2")
    assert find_route(Target("x"), SshSettings(str(ssh_user.config), True)).accept_new
    assert "secret" not in f"{told} {told!r} {told_route}"


def test_a_configuration_that_cannot_be_read_is_reported(ssh_user):
    ssh_user.wants("Hots gpu1")
    for path, word in (
        (ssh_user.config, "Bad configuration option"),
        (ssh_user.folder / "no", "No such"),
    ):
        with pytest.raises(HostUnavailable, match=rf"^gpu1: the SSH configuration .*{word}"):
            find_route(Target("gpu1"), SshSettings(str(path)))


def test_without_ssh_hosts_are_reached_as_without_a_configuration(ssh_user, monkeypatch):
    account = pwd.getpwuid(os.getuid())
    configurations = [f"{ssh_user.folder}/none"]
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(ssh_config, "_CONFIG_FILES", configurations)
    route = find_route(Target("gpu1", 44), SshSettings())
    assert route[:4] == ("gpu1", "gpu1", 44, account.pw_name)
    assert find_route(Target("gpu1", ssh_username="me"), SshSettings())[:4] == (
        *("gpu1", "gpu1", 22, "me"),
    )
    assert f"{account.pw_dir}/.ssh/id_ed25519" in route.identity_files
    assert f"{account.pw_dir}/.ssh/known_hosts" in route.known_hosts
    why = r"^gpu1: the SSH configuration {} cannot be used: .* install OpenSSH's client$"
    with pytest.raises(HostUnavailable, match=why.format(ssh_user.folder / "no")):
        find_route(Target("gpu1"), SshSettings(str(ssh_user.folder / "no")))
    configurations.append(str(ssh_user.config))
    with pytest.raises(HostUnavailable, match=why.format(ssh_user.config)):
        find_route(Target("gpu1"), SshSettings())
