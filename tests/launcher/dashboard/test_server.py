"""Connections to a dashboard by those who do not have its token: they keep nobody else waiting."""

import contextlib
import socket
import threading
import time
import urllib.request

import pytest
from deadlines import load

from launcher.dashboard import serve, server
from launcher.dashboard.site import Site

TOKEN = "a-token-of-the-test"
HEAD = b"GET /x HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture
def port():
    made = serve._listen(Site(None, TOKEN, False, ""), 0)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.port
    made.shutdown()


def _dial(port, sent):
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(sent)
    return connection


def _ask(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{TOKEN}/", timeout=30) as answer:
        return answer.status


@pytest.mark.parametrize(
    "sent", [b"", HEAD, b"POST /x HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + bytes(20_000)]
)
def test_unfinished_requests_take_no_threads_and_keep_no_answer_waiting(port, sent):
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(2 * server.MOST_WAITING):
            held.enter_context(_dial(port, sent))
        since = time.monotonic()
        assert _ask(port) == 200
        assert time.monotonic() - since < 1 * load()
        assert threading.active_count() < before + 20


def test_a_request_that_arrives_in_parts_is_answered(port):
    with _dial(port, HEAD) as connection:
        for part in (b"\r", b"\n"):
            time.sleep(0.1)
            connection.sendall(part)
        assert connection.makefile("rb").readline() == b"HTTP/1.1 403 FORBIDDEN\r\n"


@pytest.mark.parametrize("sent", [HEAD, b"GET /" + bytes(2 * server._MOST_BYTES)])
def test_a_head_that_does_not_end_is_not_waited_for(port, sent, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with _dial(port, sent) as connection, contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""  # or a reset: it is closed with what was not read


def test_connections_that_end_before_their_request_are_forgotten(port):
    for how in (b"\0\0\0\0\0\0\0\0", b"\1\0\0\0\0\0\0\0"):  # at once: a reset
        with _dial(port, HEAD) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
    assert _ask(port) == 200
