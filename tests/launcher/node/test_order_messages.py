"""Lines over a TLS connection that is read and written at the same time."""

import contextlib
import json
import socket
import ssl
import threading
import time

import pytest

from impala_mm.runtime import certificates
from launcher.node import order_channel
from launcher.node.order_messages import OrderMessages

ROLES = order_channel.CONTROL_ROLES


@pytest.fixture(scope="module")
def contexts():
    parts = certificates.by_role(certificates.make(ROLES), ROLES)
    return [order_channel.context(parts[role], role) for role in ROLES]


@pytest.fixture
def ends(contexts):
    """Both ends of a connection."""
    ours, theirs = socket.socketpair()
    found: list[ssl.SSLSocket] = []
    server = threading.Thread(
        target=lambda: found.append(contexts[0].wrap_socket(ours, server_side=True))
    )
    server.start()
    client = contexts[1].wrap_socket(theirs, server_hostname=order_channel.SUPERVISOR)
    server.join()
    both = [OrderMessages(each, 1 << 20) for each in (found[0], client)]
    yield both
    for each in both:
        each.close()


def test_long_lines_cross_in_both_directions_at_once(ends):
    sent = [[{"n": i, "text": "x" * (1 << 19)} for i in range(6)] for _ in ends]
    received: list[list] = [[], []]

    def read(i):
        for line in ends[i].lines():
            received[i].append(json.loads(line))
            if len(received[i]) == 12:
                return

    def write(i):
        for message in sent[i]:
            ends[i].send(order_channel.encode(message))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
    threads += [threading.Thread(target=write, args=(i,)) for i in (0, 0, 1, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for i in range(2):
        assert sorted(m["n"] for m in received[i]) == sorted([*range(6)] * 2)
        assert all(len(m["text"]) == 1 << 19 for m in received[i])


def test_a_silent_peer_is_noticed_and_a_closed_connection_ends_the_lines(ends):
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        next(ends[0].lines(0.5))
    assert time.monotonic() - begin > 0.4
    ends[1].send(b"last\n")
    lines = ends[0].lines()
    assert next(lines) == b"last"
    ends[1].close()
    assert next(lines, b"the end") == b"the end"


def test_a_line_without_an_end_is_refused(ends):

    def send():
        with contextlib.suppress(OSError):
            ends[1].send(b"x" * (2 << 20))

    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(ValueError, match="a line of more than 1048576 bytes"):
        next(ends[0].lines())
