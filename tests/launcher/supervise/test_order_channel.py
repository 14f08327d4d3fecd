"""Credentials by role, and the socket at which orders are taken."""

import re
import socket
import ssl

import pytest
from processes import free_port

from impala_mm.runtime import certificates
from launcher.supervise import order_channel
from launcher.supervise.order_channel import MPIRUN, SUPERVISOR


@pytest.fixture(scope="module")
def content():
    return certificates.make(order_channel.ROLES)


def test_each_role_gets_its_own_key_and_no_other(content):
    parts = certificates.by_role(content, order_channel.ROLES)
    keys = re.findall(r"-----BEGIN PRIVATE KEY-----.*?-----END", content, re.DOTALL)
    assert len(keys) == 2
    for role, own, other in ((SUPERVISOR, *keys), (MPIRUN, *reversed(keys))):
        assert own in parts[role]
        assert other not in parts[role]
        assert parts[role].count("BEGIN CERTIFICATE") == 2, "its own, and the authority's"


def _connect(server, client):
    """Shake hands in memory; raise ssl.SSLError if one refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    connecting = client.wrap_bio(to_client, to_server, server_hostname=SUPERVISOR)
    for _ in range(4):
        for end in (connecting, accepting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    connecting.write(b"x")
    assert accepting.read() == b"x"
    return connecting.version()


def test_supervisor_and_mpirun_of_one_run_accept_each_other_and_nobody_else(content):
    own = certificates.by_role(content, order_channel.ROLES)
    other = certificates.by_role(certificates.make(order_channel.ROLES), order_channel.ROLES)

    def contexts(server, client):
        return (
            order_channel.context(server, SUPERVISOR),
            order_channel.context(client, MPIRUN),
        )

    assert _connect(*contexts(own[SUPERVISOR], own[MPIRUN])) == "TLSv1.3"
    for server, client in (
        (own[SUPERVISOR], other[MPIRUN]),
        (other[SUPERVISOR], own[MPIRUN]),
        (own[SUPERVISOR], own[SUPERVISOR]),
        (own[MPIRUN], own[MPIRUN]),
    ):
        with pytest.raises(ssl.SSLError):
            _connect(*contexts(server, client))


def test_the_first_free_port_is_taken_at_the_address_that_is_named(monkeypatch):
    monkeypatch.setattr(order_channel, "FIRST_PORT", free_port())  # other tests take the usual ones
    with order_channel.listen("127.0.0.1") as first, order_channel.listen("127.0.0.1") as second:
        address, port = first.getsockname()
        assert address == "127.0.0.1"
        assert order_channel.FIRST_PORT <= port < second.getsockname()[1]


def test_an_address_that_is_not_this_machines_stands_for_all_of_its_addresses():
    with order_channel.listen("192.0.2.99") as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        with socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5):
            pass


def test_a_name_that_leads_to_this_machine_alone_as_well_is_listened_at_for_others(monkeypatch):
    found = [(socket.AF_INET, 1, 6, "", (a, 0)) for a in ("127.0.1.1", "192.0.2.99")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with order_channel.listen("nodeB") as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
