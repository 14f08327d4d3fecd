"""Calls of a learner's functions with any bytes: gRPC over HTTP/2, written by hand.

TensorFlow's own client sends only tensors that it can make.
"""

import socket
import struct
from typing import NamedTuple

from hostile_message import PREFACE, data_frames, field, headers

_SECONDS = 20.0
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_MOST_BYTES = 60_000  # of a message: more must wait for the receiver


class Answer(NamedTuple):
    """The end of a call."""

    content: bytes  # the message of a successful call; empty if it failed
    text: str  # the headers of the answer, in which an error's message can be read


def encode(function: str, tensors: list[bytes]) -> bytes:
    """Return a request of a function: `tensors` are TensorProtos as bytes."""
    return field(1, function.encode()) + b"".join(field(2, tensor) for tensor in tensors)


def call(address: str, request: bytes, path: bytes = b"/tensorflow.rpc.RpcService/Call") -> Answer:
    """Send a request over a new connection, and wait for its answer; raise OSError without one."""
    assert len(request) < _MOST_BYTES
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(PREFACE + headers(path) + data_frames(request))
        return _read_answer(connection)


def _read_answer(connection: socket.socket) -> Answer:
    content, text, received = b"", b"", b""
    while True:
        while len(received) < 9 or len(received) < 9 + _length(received):
            part = connection.recv(1 << 16)
            if not part:
                raise ConnectionError(f"the connection ended without an answer: {text!r}")
            received += part
        end = 9 + _length(received)
        kind, flags, body = received[3], received[4], received[9:end]
        received = received[end:]
        if kind == _DATA:
            content += body
        elif kind == _HEADERS:
            text += body
        elif kind in (_RESET, _GOAWAY):
            return Answer(b"", f"ended by the server: {body!r}")
        if kind in (_DATA, _HEADERS) and flags & 1:
            return Answer(content[5:], text.decode(errors="replace"))


def _length(frame: bytes) -> int:
    return struct.unpack(">I", b"\0" + frame[:3])[0]
