"""A host that cannot be reached for want of a package says how this machine gets it."""

import importlib.util

import pytest

from launcher.remote.remote_node import HostUnavailable, RemoteNode
from launcher.ssh.ssh_config import Settings, Target


def test_without_paramiko_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    node = RemoteNode("10.9.9.9", Target("10.9.9.9"), Settings("", False), ["python3"])
    with pytest.raises(HostUnavailable) as error:
        node.connect("impala")
    said = "paramiko, which connects, is missing: make setup LEARNERS=all"
    assert str(error.value) == said
