"""The connection to a host: what keeps it from being opened is said, and it is tried again."""

import errno
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from launcher.hosts import remote_node
from launcher.hosts.remote_node import HostUnavailable, RemoteNode
from launcher.hosts.ssh_config import Settings, Target


def test_without_paramiko_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "paramiko", None)
    monkeypatch.delitem(sys.modules, "launcher.hosts.connection", raising=False)
    node = RemoteNode("10.9.9.9", Target("10.9.9.9"), Settings("", False), ["python3"])
    with pytest.raises(HostUnavailable) as error:
        node.connect("impala")
    said = "paramiko, which connects, is missing: make setup LEARNERS=all"
    assert str(error.value) == said


def test_a_host_is_tried_again_whatever_this_machine_lacked(monkeypatch):
    monkeypatch.setattr(remote_node, "_PAUSE_SECONDS", 0.01)
    node = RemoteNode("10.9.9.9", Target("10.9.9.9"), Settings("", False), [])
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
