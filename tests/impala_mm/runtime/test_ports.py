"""Addresses as users write them, and ports that a learner holds until its server listens."""

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import free_port

from impala_mm.config.settings import Config
from impala_mm.jobs import learner, local_run
from impala_mm.runtime import ports
from impala_mm.runtime.ports import HeldAddress


def test_an_address_without_host_or_port_is_refused():
    for address in ("localhost", "localhost:", ":80", "a:b", "a:-1", "a:65536"):
        with pytest.raises(ValueError, match=f"'{address}'"):
            ports.split_address(address)


@pytest.mark.parametrize(
    ("address", "found", "said"),
    [
        ("myhost:8001", ["127.0.1.1"], "myhost is 127.0.1.1 on this machine"),
        ("myhost:8001", ["::1"], "--bind_address=0.0.0.0:8001"),
        ("myhost:8001", ["127.0.1.1", "10.0.0.7"], ""),
        ("localhost:8001", ["127.0.0.1", "::1"], ""),
        ("127.0.0.1:8001", ["127.0.0.1"], ""),
    ],
)
def test_a_name_that_other_hosts_cannot_reach_is_warned_of(monkeypatch, address, found, said):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 8001)) for one in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer)
    warning = ports.loopback_warning(address)
    assert said in warning
    assert bool(said) == bool(warning)


def _listen_as_grpc(port):
    """Return a socket that listens as gRPC's server does, which shares its port."""
    server = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        server.bind(("127.0.0.1", port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def test_a_held_port_is_refused_to_all_until_it_is_shared_with_a_server_of_this_user():
    held = HeldAddress(address := f"127.0.0.1:{free_port()}")
    named = f"{address}: Address already in use \\(held by process {os.getpid()}: "
    with pytest.raises(OSError, match=named):
        HeldAddress(address)
    with pytest.raises(OSError, match="in use"):
        _listen_as_grpc(held.port)
    held.share()
    with _listen_as_grpc(held.port):
        with pytest.raises(OSError, match=named):
            HeldAddress(address)
        held.release()
        with pytest.raises(OSError, match=named):
            HeldAddress(address)
    HeldAddress(address).release()


def test_a_port_is_held_for_one_although_many_ask_in_the_same_instant():
    address, together = f"127.0.0.1:{free_port()}", threading.Barrier(20)

    def ask(_):
        together.wait()
        try:
            return HeldAddress(address)
        except OSError as error:
            return str(error)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    (held,) = [each for each in answers if isinstance(each, HeldAddress)]
    assert sum("held by process" in str(each) for each in answers) == 19
    held.release()


def test_port_0_takes_the_first_free_port(monkeypatch):
    first = free_port()
    monkeypatch.setattr(ports, "FIRST_PORT", first)
    held = [HeldAddress("localhost:0") for _ in range(3)]
    assert held[0].address == f"localhost:{held[0].port}"
    found = [each.port for each in held]
    assert found == sorted(set(found)), "each has its own"
    assert found[0] == first
    held.append(HeldAddress("localhost:0", reserved=[found[-1] + 1]))
    assert held[-1].port > found[-1] + 1, "another learner is given that one"
    for each in held:
        each.release()


@pytest.mark.parametrize("host", ["nosuchhost.invalid", "192.0.2.1"])
def test_another_machines_address_is_no_reason_to_try_the_next_port(host):
    with pytest.raises(OSError, match=rf"{host}:8001: (Name|Temporary|No address|Cannot assign)"):
        HeldAddress(f"{host}:0")


def test_the_holder_of_a_port_is_another_process_by_its_number_and_command():
    program = "import socket as s; l = s.create_server(('127.0.0.1', 0)); "
    program += "print(l.getsockname()[1], flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        address = f"127.0.0.1:{other.stdout.readline().strip()}"
        held = rf"{address}: .* \(held by process {other.pid}: {sys.executable}.*--learner_hosts="
        with pytest.raises(OSError, match=held):
            learner.hold(address, "learner_hosts")
        other.communicate("")


@pytest.mark.parametrize(
    ("hosts", "bind", "address", "listens"),
    [
        ("localhost:0", "", "localhost:{0}", "localhost:{0}"),
        ("gpu1:0", "localhost:0", "gpu1:{0}", "localhost:{0}"),
        ("gpu1:0", "localhost:{1}", "gpu1:{1}", "localhost:{1}"),
        ("gpu1:{1}", "localhost:0", "gpu1:{1}", "localhost:{1}"),
    ],
)
def test_port_0_of_either_flag_is_the_port_of_the_other(monkeypatch, hosts, bind, address, listens):
    free = free_port(), free_port()
    monkeypatch.setattr(ports, "FIRST_PORT", free[0])
    hosts, bind, address, listens = (each.format(*free) for each in (hosts, bind, address, listens))
    config = Config(learner_hosts=hosts, bind_address=bind)
    reached, held = learner._hold(config, hosts)
    held.release()
    assert (reached, held.address) == (address, listens)


def test_several_learners_that_take_free_ports_are_all_given_port_0():
    config = Config(num_learners=3, learner_hosts="localhost:0")
    assert local_run.local_learner_addresses(config) == ["localhost:0"] * 3
