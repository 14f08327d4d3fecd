"""Bytes of strangers at a learner's front, and of an actor's program that has gone mad, by TLS.

After each the learner answers an actor, and its front is the same process.
"""

import contextlib
import itertools
import socket
import ssl

import pytest
from deadlines import load
from fronted import TOKEN, Learner, slowest_call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impala_mm.runtime.ports import split_address
from impala_mm.transport.tls import ACTOR, LEARNER, Credentials

_OPTIONS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAMES = st.builds(  # of HTTP/2, whose length, kind and stream need not be right
    lambda length, kind, flags, stream, content: (
        length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content
    ),
    st.integers(0, 2**24 - 1) | st.integers(0, 30),
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from([0, 1, 3, 2**31 - 1, 2**32 - 1]),
    st.binary(max_size=60),
)
_SPOKEN = st.one_of(
    st.binary(max_size=200),
    st.lists(_FRAMES, max_size=5).map(lambda frames: _PREFACE + b"".join(frames)),
)


@pytest.fixture(scope="module")
def learner():
    with Learner() as made:
        yield made


@pytest.fixture(scope="module")
def client_hello():
    """Return the first bytes of a handshake that would succeed."""
    out = ssl.MemoryBIO()
    connecting = _context(ACTOR).wrap_bio(ssl.MemoryBIO(), out, server_hostname=LEARNER)
    with contextlib.suppress(ssl.SSLWantReadError):
        connecting.do_handshake()
    return out.read()


def _context(role):
    return Credentials.parse(TOKEN).context(role)


def _close(connection, how):
    """Close a connection at once, after its end, or only this direction of it."""
    with contextlib.suppress(OSError):
        if how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif how == "half":
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0.2)
            connection.recv(100)
    connection.close()


_ENDS = st.sampled_from(["reset", "half", "whole"])


def test_any_bytes_instead_of_a_handshake_or_after_its_beginning(learner, client_hello):
    client, process, number = learner.join(), learner.front.process, itertools.count()

    @settings(max_examples=150, **_OPTIONS)
    @given(st.integers(0, len(client_hello)), st.binary(max_size=100), _ENDS)
    def each(kept, more, how):
        # An address that fails too often is refused at once.
        source = f"127.8.0.{1 + next(number) % 100}", 0
        where = split_address(learner.address)
        connection = socket.create_connection(where, 10, source_address=source)
        with contextlib.suppress(OSError):
            connection.sendall(client_hello[:kept] + more)
        _close(connection, how)

    each()
    assert slowest_call(client, 3) < 20 * load()
    assert learner.front.process is process
    assert process.poll() is None


def test_any_bytes_of_an_actor_by_tls_reach_tensorflow_and_end_nothing(learner):
    client, process = learner.join(), learner.front.process

    @settings(max_examples=100, **_OPTIONS)
    @given(_SPOKEN, _ENDS)
    def each(spoken, how):
        plain = socket.create_connection(split_address(learner.address), 10)
        secure = _context(ACTOR).wrap_socket(plain, server_hostname=LEARNER)
        with contextlib.suppress(OSError):
            secure.sendall(spoken)
        _close(secure, how)

    each()
    assert slowest_call(client, 3) < 20 * load()
    assert learner.join().hello({"probe": True})["nonce"]
    assert learner.front.process is process
    assert process.poll() is None
