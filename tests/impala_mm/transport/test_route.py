"""The relay of an actor: it outlives errors of this process and of the learner."""

import os
import resource
import socket
import threading

import pytest

from impala_mm.runtime import run_token
from impala_mm.transport import route
from impala_mm.transport.route import Relay
from impala_mm.transport.tls import Credentials


@pytest.fixture
def relay(monkeypatch, tmp_path):
    """Yield a relay, and the socket that it dials."""
    monkeypatch.setattr(route, "_FOLDER", tmp_path / "own")
    with socket.create_server(("127.0.0.1", 0)) as front:
        front.settimeout(5)
        address = f"127.0.0.1:{front.getsockname()[1]}"
        yield Relay(address, Credentials.parse(run_token.make())), front


def _is_dialled(relay, front):
    with socket.socket(socket.AF_UNIX) as local:
        local.connect(str(relay.path))
        front.accept()[0].close()
        return True


def test_a_relay_serves_again_once_its_process_may_open_files(relay):
    relay, front = relay
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as local:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), before[1]))
        try:
            local.connect(str(relay.path))
            threading.Event().wait(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert _is_dialled(relay, front)
