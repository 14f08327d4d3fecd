"""Addresses as users write them."""

import socket

import pytest

from impala_mm.runtime import ports


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":80", "a:b", "a:-1", "a:65536"])
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(ValueError, match="is not host:port"):
        ports.split_address(address)


@pytest.mark.parametrize(
    ("address", "found", "said"),
    [
        (
            "myhost:8001",
            ["127.0.1.1"],
            "myhost is 127.0.1.1 on this machine, which no other host reaches",
        ),
        ("myhost:8001", ["::1"], "--bind_address=0.0.0.0:8001"),
        ("myhost:8001", ["10.0.0.7"], ""),
        ("myhost:8001", ["127.0.1.1", "10.0.0.7"], ""),
        ("localhost:8001", ["127.0.0.1", "::1"], ""),
        ("127.0.0.1:8001", ["127.0.0.1"], ""),
        ("0.0.0.0:8001", ["0.0.0.0"], ""),
    ],
)
def test_a_name_that_other_hosts_cannot_reach_is_warned_of(monkeypatch, address, found, said):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 8001)) for one in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer)
    warning = ports.loopback_warning(address)
    assert said in warning
    assert bool(said) == bool(warning)
