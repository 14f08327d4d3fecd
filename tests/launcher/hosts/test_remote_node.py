"""The connection to a host: what keeps it from being opened is said, and it is tried again."""

import errno
import itertools
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from deadlines import within
from ssh_user import needs_sshd
from supervising import until

from launcher.hosts import remote_node
from launcher.hosts.remote_files import RemoteFiles
from launcher.hosts.remote_node import HostUnavailable, OperationFailed, RemoteNode
from launcher.hosts.ssh_config import Target
from launcher.plan.settings import SshSettings
from launcher.supervise import procfs


def test_without_paramiko_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "paramiko", None)
    monkeypatch.delitem(sys.modules, "launcher.hosts.connection", raising=False)
    node = RemoteNode("10.9.9.9", Target("10.9.9.9"), SshSettings("", False), ["python3"])
    with pytest.raises(HostUnavailable, match=r"paramiko, .*is missing: make setup LEARNERS=all"):
        node.connect("impala")


def test_a_host_is_tried_again_whatever_this_machine_lacked(monkeypatch):
    monkeypatch.setattr(remote_node, "_PAUSE_SECONDS", 0.01)
    node = RemoteNode("10.9.9.9", Target("10.9.9.9"), SshSettings("", False), [])
    connected, errors = threading.Event(), []
    tries = iter([OSError(errno.EMFILE, os.strerror(errno.EMFILE)), RuntimeError("no thread"), 0])

    def connect(*arguments):
        if failure := next(tries):
            raise failure
        lost = threading.Event()
        return SimpleNamespace(
            lost=lost,
            error="",
            connection=SimpleNamespace(login="me"),
            close=lambda why: lost.set(),
        )

    def on_connected(host_id):
        connected.set()
        node.close()

    monkeypatch.setattr(remote_node, "_AgentConnection", connect)
    listener = SimpleNamespace(
        on_connected=on_connected, on_disconnected=lambda host_id, error: errors.append(error)
    )
    node.stay_connected(listener)
    assert connected.wait(20)
    assert errors == [
        *("not connected yet", "10.9.9.9 cannot be reached: [Errno 24] Too many open files"),
        "RuntimeError: no thread",
    ]


@needs_sshd
def test_who_waits_for_a_host_that_is_lost_is_told_and_later_calls_reach_it_again(ssh_user):
    path = ssh_user.key()
    server = ssh_user.sshd(f"SetEnv XDG_STATE_HOME={ssh_user.folder}", lets_in=[path])
    target = Target("127.0.0.1", server.port, "", "", str(path))
    node = RemoteNode("there", target, ssh_user.settings, [])
    node.connect("impala")
    lines, told = [], []
    assert node.call("exists", path="/") is True
    with pytest.raises(OperationFailed, match=r"^there: TypeError"):
        node.call("exists")
    command = ["sh", "-c", "echo one; echo two; exit 3"]
    assert node.run_program(command, on_line=lines.append) == (3, "one\ntwo\n")
    assert lines == ["one", "two"]
    assert node.call("exists", path="/nowhere") is False
    listener = SimpleNamespace(
        on_connected=lambda host_id: told.append("connected"),
        on_disconnected=lambda host_id, error: told.append(error),
        on_states=lambda *arguments: None,
    )
    node.stay_connected(listener)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(node.run_program, ["sleep", "60"])
        until(lambda: any("sleep" in _command(p) for p in procfs.descendants(server.process.pid)))
        for pid in procfs.descendants(server.process.pid):
            if "sshd" in _command(pid):
                os.kill(pid, signal.SIGKILL)
        code, said = waiting.result(8)
    assert (code, said) == (255, "the host closed the connection\n")
    until(lambda: told[-1] == "connected" and len(told) == 3, 20)
    assert told == ["connected", "the host closed the connection", "connected"]
    assert node.call("exists", path="/") is True
    node.close()
    with pytest.raises(HostUnavailable, match=r"^there: the connection was closed$"):
        node.call("exists", path="/")


@needs_sshd
def test_a_host_that_falls_silent_ends_its_calls_and_transfers(ssh_user, monkeypatch):
    monkeypatch.setattr(remote_node, "_SILENT_SECONDS", 4)
    path = ssh_user.key()
    server = ssh_user.sshd(f"SetEnv XDG_STATE_HOME={ssh_user.folder}", lets_in=[path])
    target = Target("127.0.0.1", server.port, "", "", str(path))
    node = RemoteNode("there", target, ssh_user.settings, [])
    node.connect("impala")
    files = RemoteFiles(node)
    assert files.file_infos(["/nowhere"]) == [None]
    stopped = [pid for pid in procfs.descendants(server.process.pid) if "sshd" in _command(pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor() as pool, within(15):
            endless = itertools.repeat(bytes(1 << 18))  # until SSH's window is full
            sending = pool.submit(files.write, [[f"{ssh_user.folder}/sent", 0]], endless)
            assert node.run_program(["true"]) == (255, "no answer for 4 s\n")
            with pytest.raises(HostUnavailable, match=r"^there: no answer for 4 s$"):
                sending.result()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)


@needs_sshd
def test_a_host_cannot_fill_the_memory_of_this_machine(ssh_user, monkeypatch):
    monkeypatch.setattr(remote_node, "_MAX_LINE", 100_000)
    path = ssh_user.key()
    server = ssh_user.sshd(f"SetEnv XDG_STATE_HOME={ssh_user.folder}", lets_in=[path])
    target = Target("127.0.0.1", server.port, "", "", str(path))
    node = RemoteNode("there", target, ssh_user.settings, [])
    node.connect("impala")
    assert node.run_program(["head", "-c", "80000", "/dev/zero"])[0] == 255
    with pytest.raises(HostUnavailable, match="there: the host sent a line of more than 100,000"):
        node.call("exists", path="/")
    node.close()


def _command(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read()
    except OSError:
        return ""
