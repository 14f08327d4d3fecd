"""Strangers who try to use up what a front has: connections, handshakes, memory, time."""

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deadlines import load
from fronted import Learner, slowest_call
from hostile_message import send_hostile
from processes import ROOT, free_port
from supervising import until

from impala_mm.runtime.ports import HeldAddress, split_address
from impala_mm.transport import front
from impala_mm.transport.client import Unreachable


@pytest.fixture
def learner():
    with Learner() as made:
        yield made


def test_a_message_that_tensorflow_expands_never_reaches_it(learner):
    client = learner.join()
    slowest_call(client)
    senders = [send_hostile(learner.address) for _ in range(3)]
    assert slowest_call(client) < 3 * load()
    for each in senders:
        with contextlib.suppress(ConnectionResetError):
            assert b"\0\0\0\4" not in each.recv(100), "no answer in HTTP/2"
        each.close()
    assert "it does not speak TLS 1.3" in learner.await_refusals()[0]


def test_idle_connections_before_its_start_do_not_keep_a_learner_from_starting():
    """Any account can open them while TensorFlow is loaded; a learner's own check comes later."""
    held = HeldAddress(f"127.0.0.1:{free_port()}")
    with contextlib.ExitStack() as idle:
        for _ in range(front.BURST + 20):
            idle.enter_context(socket.create_connection(split_address(held.address)))
        with Learner(held) as learner:
            assert any(f"no answer from itself at {held.address}" in line for line in learner.said)
            assert learner.join(from_outside=False).hello({"probe": True})["nonce"]
            until(lambda: _can_join(learner), 2 * front.HANDSHAKE_SECONDS)


def _can_join(learner):
    with contextlib.suppress(Unreachable):
        return learner.join()


def test_idle_connections_of_a_few_addresses_keep_no_new_actor_away(learner):
    """They are replaced at once, so that there are always as many as there may be."""
    where = split_address(learner.address)
    with contextlib.ExitStack() as idle:
        for number in range(8 * 90):
            source = f"127.7.0.{1 + number % 8}", 0
            idle.enter_context(socket.create_connection(where, source_address=source))
        assert learner.join().hello({"probe": True})["nonce"]
        line = "refused from 127.7.0.1 (its place was needed for newer handshakes)"
        until(lambda: any(line in each for each in learner.said), 5)


def test_a_front_without_files_to_open_waits_and_serves_again(learner):
    pid = learner.front.process.pid
    client = learner.join()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), before[1]))
    with contextlib.ExitStack() as idle:
        for _ in range(20):
            idle.enter_context(learner.dial())
        until(lambda: any("can open no more files" in line for line in learner.said), 5)
        used = _cpu_seconds(pid)
        time.sleep(2)
        assert _cpu_seconds(pid) - used < 0.2
        assert client.hello({"probe": True})["nonce"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert learner.join().hello({"probe": True})["nonce"]
    assert sum("can open no more files" in line for line in learner.said) == 1


def test_garbage_half_handshakes_and_idle_connections_are_closed_and_counted(learner):
    client = learner.join()
    before = _resident(learner.front.process.pid)
    open_ones = []
    for number in range(front.CONNECTIONS // 20):  # 200, one kind after the other
        with contextlib.suppress(OSError):  # it is among those that are refused at once
            connection = learner.dial()
            open_ones.append(connection)
            if number % 3 == 1:
                connection.sendall(random.Random(number).randbytes(300))
            if number % 3 == 2:
                connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the start of a handshake
    assert slowest_call(client) < 2 * load()
    until(learner.refusals, 10)
    for each in open_ones:
        each.settimeout(front.HANDSHAKE_SECONDS + 5)
        with contextlib.suppress(ConnectionResetError):
            while each.recv(4096):
                pass
        each.close()
    assert slowest_call(client) < 2 * load()
    assert _resident(learner.front.process.pid) - before < 30, "megabytes"


def test_connections_that_are_reset_at_once_do_not_end_the_front(learner):
    """Each may be gone before the front has accepted it, with bytes or without."""
    client = learner.join()
    process, reset = learner.front.process, struct.pack("ii", 1, 0)
    for number in range(2000):
        with contextlib.suppress(OSError), learner.dial() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            if number % 2:
                connection.send(b"\x16\x03\x01\x02\x00\x01\x00")
    slowest_call(client)
    assert learner.front.process is process
    assert process.poll() is None
    assert not [line for line in learner.said if "has ended" in line]


@pytest.mark.slow
def test_a_flood_of_strangers_costs_little_and_actors_calls_go_on(learner):
    """Garbage, the start of a handshake, and a message, 1,000 a second for 12 s."""
    client, pid = learner.join(), learner.front.process.pid
    slowest_call(client)
    program = ROOT / "tests" / "helpers" / "flood.py"
    command = [sys.executable, str(program), learner.address, "1000", "12"]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(2)
    memory, used, since = _resident(pid), _cpu_seconds(pid), time.monotonic()
    slowest = 0.0
    while flood.poll() is None:
        slowest = max(slowest, slowest_call(client, 5))
        time.sleep(0.2)
        if time.monotonic() - since < 9:
            share = (_cpu_seconds(pid) - used) / (time.monotonic() - since)
    made = int(flood.stdout.read())
    print(f"{made} connections; {share:.3f} of a core; slowest call {slowest:.3f} s")
    assert made > 6000
    assert share < 0.2
    assert slowest < 3 * load()
    assert _resident(pid) - memory < 10, "megabytes"
    assert len(learner.refusals()) < 5


def _resident(pid):
    """Return the memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
