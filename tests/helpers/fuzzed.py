"""A learner's server in a process of its own, and calls of it with any content.

TensorFlow's own client sends only tensors that it can make, so requests are written by hand.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import remotely
import tensorflow as tf
import unrolls
from damaging import ANY_JSON, damaged
from hostile_message import PREFACE, data_frames, field, headers
from hypothesis import strategies as st
from processes import ROOT
from served import LEVEL
from tensorflow.core.framework import tensor_pb2

from impala_mm.data.episodes import to_rows
from impala_mm.transport.messages import MessageHeader, MessageReply, ParametersRequest, run_number

SIZES = [2]  # of the actor's groups of environments
_EDGES = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 16, 2**31, 2**53, 2**62, 2**63 - 1]
_numbers = st.sampled_from(_EDGES) | st.integers(-(2**63), 2**63 - 1)
# Neither type nor size need be that of what follows; 2**62 numbers fit in no memory.
_dimensions = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 17, 18, 19, 2**62]), max_size=4)
_types = st.sampled_from([0, 1, 2, 3, 4, 7, 9, 10, 14, 19, 20, 21, 23, 101, 107, 2**20])


_SECONDS = 20.0
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_MOST_BYTES = 60_000  # of a message: more must wait for the receiver


class Answer(NamedTuple):
    """The end of a call."""

    content: bytes  # the message of a successful call; empty if it failed
    text: str  # the headers of the answer, in which an error's message can be read


def _call(address: str, function: str, tensors: Sequence[bytes]) -> Answer:
    """Call a function over a new connection: `tensors` are TensorProtos; OSError: no answer."""
    request = field(1, function.encode()) + b"".join(field(2, tensor) for tensor in tensors)
    assert len(request) < _MOST_BYTES
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(PREFACE + headers() + data_frames(request))
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


class Served:
    """The process and what an actor knows of it."""

    def __init__(self, kind: str):
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "helpers" / "served.py"), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
            text=True,
        )
        assert self.process.stdout
        self.address, self.identity = json.loads(self.process.stdout.readline())
        self.kind, self._number = kind, 0
        self.join()

    def end(self) -> None:
        """End the process, which must still run."""
        assert self.process.poll() is None, self.printed()
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(20)

    def printed(self) -> str:
        """Return what it has logged."""
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def megabytes(self) -> float:
        """Return the memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def call(self, function: str, *tensors: bytes) -> Answer:
        """Call a function with TensorProtos as bytes."""
        return _call(self.address, function, tensors)

    def hello(self, **changes: object) -> bytes:
        """Return the hello of an actor as JSON."""
        known = {n: v for n, v in self.identity.items() if n not in ("nonce", "learners", "run_id")}
        me = {"actor": 1, "incarnation": 1, "level": LEVEL, "groups": SIZES, "host": "h"}
        return json.dumps(known | me | changes).encode()

    def join(self) -> dict:
        """Let the actor join, and return the answer."""
        answer = self.call("hello", TOKEN, tensor(self.hello()))
        return json.loads(read(answer)[0].item())

    def header(self, **changes: int) -> np.ndarray:
        """Return the header of a message, int64 [18]."""
        own = MessageHeader(self.identity["nonce"], run_number("run"), 1, 1)
        if self.kind == "inference":
            own = own._replace(stream=0, environments=SIZES[0])
        elif self.kind == "rounds":
            own = own._replace(environments=sum(SIZES))
        return np.array(own._replace(**changes), np.int64)

    def arguments(self, function: str) -> list[bytes]:
        """Return right arguments of a function; a message's number may have been used before."""
        header, content = tensor(self.header()), np.array([unrolls.unroll(1)], object)
        message = [header, tensor(content), tensor(to_rows([]))]
        request = tensor(np.array(ParametersRequest(-1, 0, 1), np.int64))
        of_function = {
            "hello": [tensor(self.hello())],
            "chunk": [header, tensor(np.zeros([2], np.int64)), tensor(b"x")],
            "claim": [header],
            "get_parameters": [request],
        }
        return [TOKEN, *of_function.get(function, message)]

    def answers(self) -> None:
        """Assert that it still does what it is for: an actor joins, and its message is accepted."""
        assert "refused" not in self.join()
        assert read(self.call("get_parameters", *self.arguments("get_parameters")))[0][0] >= 0
        if self.kind == "unrolls":
            self._number += 1
            _, *message = self.arguments("enqueue")
            message[0] = tensor(self.header(number=self._number))
            numbers, _ = read(self.call("enqueue", TOKEN, *message))
            assert MessageReply(*numbers.tolist()).reply in (0, 2)  # the number may have been used


def tensor(value: object) -> bytes:
    """Return a value as a TensorProto."""
    return tf.make_tensor_proto(value).SerializeToString()


TOKEN = tensor(remotely.TOKEN.encode())


def read(answer: Answer) -> list[np.ndarray]:
    """Return the arrays in an answer, which has them as its field of number 1."""
    assert answer.content, answer.text
    tensors = tf.train.BytesList.FromString(answer.content).value
    return [tf.make_ndarray(tensor_pb2.TensorProto.FromString(each)) for each in tensors]


@st.composite
def any_tensor(draw: st.DrawFn) -> bytes:
    """Draw a TensorProto whose type, shape and content need not fit."""
    made = tensor_pb2.TensorProto(dtype=draw(_types))
    for size in draw(_dimensions):
        made.tensor_shape.dim.add(size=size)
    made.tensor_content = draw(st.binary(max_size=200))
    made.int64_val.extend(draw(st.lists(_numbers, max_size=17)))
    made.float_val.extend(draw(st.lists(st.floats(width=32), max_size=4)))
    made.string_val.extend(draw(st.lists(st.binary(max_size=100), max_size=4)))
    return made.SerializeToString()


@st.composite
def wrong_call(draw: st.DrawFn, served: Served) -> tuple[str, list[bytes]]:
    """Draw a call with one argument that is wrong in bytes, type, shape or number."""
    functions = {"unrolls": ["enqueue", "chunk"], "inference": ["infer"]}
    own = functions.get(served.kind, ["enqueue", "chunk", "claim"])
    function = draw(st.sampled_from([*own, "hello", "get_parameters", "nothing"]))
    arguments = served.arguments(function)
    position = draw(st.integers(0, len(arguments) - 1))
    how = draw(st.sampled_from(["corrupt", "replace", "add", "remove", "number"]))
    if how == "add":
        arguments.insert(position, draw(any_tensor()))
    elif how == "remove":
        del arguments[position]
    elif how == "number":
        arguments[1:] = _with_wrong_number(draw, served, function, arguments[1:])
    elif how == "replace":
        arguments[position] = draw(any_tensor())
    else:
        arguments[position] = draw(damaged(arguments[position]))
    return function, arguments


def _with_wrong_number(
    draw: st.DrawFn, served: Served, function: str, arguments: list[bytes]
) -> list[bytes]:
    """Return right arguments but for a number, a field or the content."""
    if function == "hello":
        fields = (*json.loads(served.hello()), "shared", "failure", "start", "probe", "learners")
        changes = {draw(st.sampled_from(fields)): draw(ANY_JSON)}
        return [tensor(served.hello(**changes))]
    if function == "get_parameters":
        return [tensor(np.array(draw(st.lists(_numbers, min_size=3, max_size=3)), np.int64))]
    changes = {draw(st.sampled_from(MessageHeader._fields)): draw(_numbers)}
    header = tensor(served.header(**changes))
    if function == "chunk":
        position = np.array([draw(_numbers), draw(_numbers)], np.int64)
        return [draw(st.sampled_from([header, arguments[0]])), tensor(position), arguments[2]]
    if function == "claim":
        return [header]
    contents = draw(st.lists(st.binary(max_size=200), max_size=5))
    episodes = draw(st.lists(st.floats(width=32), min_size=4, max_size=4))
    return [
        draw(st.sampled_from([header, arguments[0]])),
        tensor(np.array(contents, object)) if contents else arguments[1],
        tensor(np.array([episodes], np.float32)),
    ]
