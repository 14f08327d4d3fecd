"""A reader of pickles that executes nothing of them: `dopamine` reads checkpoints with it.

A pickle is a program for a stack machine, which may call any function of any module. This module
interprets its instructions itself, and `Objects` decides what a name in it stands for: nothing is
imported or called. The few names that Dopamine's checkpoints have become values of ours; any other
is refused.

numpy's arrays, numbers and types           NumPy arrays, whose bytes are in the pickle
jax's arrays                                the NumPy array that each of them contains
FrozenDict, OrderedDict, set                dictionaries and sets
the states of optax and flax's optimizers   a `Record` of what they were made with

A hostile file cannot exhaust the machine either. Its instructions and the bytes of all arrays are
counted, and only keys whose hash is cheap are accepted.
"""

import math
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_mm.config.messages import join_lines
from impala_mm.teachers.teacher import NoTeacher

MOST_BYTES = 2**31  # of a file
_MOST_INSTRUCTIONS = 4_000_000  # a checkpoint of 200 iterations of 500 games has under a million


class Refused(Exception):
    """A pickle has something that is not read; the message names it."""


class Name(NamedTuple):
    """A function or class that a pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"the name {f'{self.module}.{self.name}'[:80]!r}"


class Record:
    """An object of a class that is not read, with what the pickle makes it of."""

    def __init__(self, name: Name, arguments: tuple[Any, ...]):
        self.name, self.arguments, self.state = name, arguments, None


class _DataType:
    """A NumPy type; its byte order follows when it is built."""

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype


_KEY_BITS = 60  # of a whole number that is a key
_DTYPE = re.compile(r"[<>|=]?([biu]1|[iuf][248])")
_NUMPY = {"numpy": {"ndarray", "dtype"}}
for _core in ("numpy.core", "numpy._core"):
    _NUMPY[f"{_core}.multiarray"] = {"_reconstruct", "scalar"}
    _NUMPY[f"{_core}.numeric"] = {"_frombuffer"}
_JAX = {
    Name("jax._src.array", "_reconstruct_array"),
    Name("jax._src.device_array", "reconstruct_device_array"),
}
_DICTIONARIES = {Name("flax.core.frozen_dict", "FrozenDict"), Name("collections", "OrderedDict")}
_SETS = {Name("builtins", "set"), Name("builtins", "frozenset")}
# Packages of optimizers, whose states are records.
_OPTIMIZERS = ("optax.", "flax.optim.")


class BadPickle(NoTeacher):
    """A pickle is damaged, too large, or has what is not read; the message says which file."""


def read(path: Path) -> Any:
    """Return the content of a file; raise BadPickle."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise BadPickle(
                f"{path} has {size:,} bytes, and pickles of at most {MOST_BYTES:,} are read"
            )
        content = path.read_bytes()
    except OSError as error:
        raise BadPickle(f"{path} cannot be read: {error.strerror}") from None
    return interpret(content, str(path))


def interpret(content: bytes, name: str) -> Any:
    """Return what a pickle contains; raise BadPickle with this name of it."""
    machine = _Machine(Objects(len(content)))
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count == _MOST_INSTRUCTIONS:
                raise BadPickle(
                    f"{name} has over {_MOST_INSTRUCTIONS:,} instructions, more than any "
                    f"checkpoint of Dopamine: give the checkpoint that Dopamine wrote"
                )
            if opcode.name == "STOP":
                (value,) = machine.stack
                return value
            instruction = _INSTRUCTIONS.get(opcode.name)
            if instruction is None:
                raise Refused(f"the instruction {opcode.name}")
            instruction(machine, argument)
    except Refused as refused:
        raise BadPickle(
            f"{name} has {refused}, which no checkpoint of Dopamine has. A pickle "
            f"may contain any program, so nothing of this file is executed and it is not read: "
            f"give the checkpoint that Dopamine wrote"
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise BadPickle(
            f"{name} is damaged, cut short or not a pickle ({join_lines(error)[:100]}): copy it "
            f"again from where it was written"
        ) from None
    raise AssertionError("genops ends with STOP or raises")


def as_key(value: Any) -> Any:
    """Return a value that may be a key; raise TypeError for those whose hash may take long.

    The hash of nested tuples takes exponential time, and many large numbers have the same one.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, str | bytes | int | float | None):
        raise TypeError(f"{type(value).__name__} as a key")
    if isinstance(value, int) and value.bit_length() > _KEY_BITS:
        raise TypeError("a large number as a key")
    return value


class Objects:
    """The values that names make in one pickle, within the bytes that it has."""

    def __init__(self, size: int):
        # Each array's bytes stand in the pickle. If it takes the same ones for many arrays, it is
        # not one that was written by NumPy.
        self._bytes_left = size

    def find(self, name: Name) -> Name:
        """Return a name that is known; raise Refused for others."""
        if (
            name.name in _NUMPY.get(name.module, ())
            or name in _JAX | _DICTIONARIES | _SETS
            or name.module.startswith(_OPTIMIZERS)
        ):
            return name
        raise Refused(str(name))

    def call(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        """Return what a function or class makes of arguments; raise Refused."""
        made: Any
        match name, arguments:
            case (_, "dtype"), (str(code), *_) if name.module in _NUMPY:
                if not _DTYPE.fullmatch(code):
                    raise Refused(f"an array of type {code[:20]!r}")
                made = _DataType(np.dtype(code))
            case (_, "_reconstruct"), (Name("numpy", "ndarray"), (0,), b"b"):
                made = np.empty([0], np.int8)
            case (_, "scalar"), (_DataType(dtype=dtype), bytes(content)):
                made = self._array((), dtype, content)[()]
            case (_, "_frombuffer"), (bytes() | bytearray() as content, _DataType() as kind, s, o):
                made = self._array(s, kind.dtype, content, fortran=o == "F")
            case _, (Name(_, "_reconstruct") as of, tuple(of_what), state, dict()) if name in _JAX:
                made = self.call(of, of_what)
                self.build(made, state)
            case _, (dict(content),) if name in _DICTIONARIES:
                made = content
            case _, () if name in _DICTIONARIES:
                made = {}
            case _, (list(items),) if name in _SETS:
                self._count(len(items))  # one list may be named many times
                made = set(map(as_key, items))
            case _:
                made = self.record(name, arguments)
        return made

    def _count(self, size: int) -> None:
        """Count bytes of arrays and elements of sets; raise Refused if the file has fewer bytes."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise Refused("more bytes in its arrays and sets than in the file")

    def record(self, name: Name, arguments: tuple[Any, ...]) -> Record:
        """Return an object of an optimizer; raise Refused for others."""
        if not name.module.startswith(_OPTIMIZERS):
            raise Refused(f"a call of {name} as its program does not call it")
        return Record(name, arguments)

    def build(self, built: Any, state: Any) -> None:
        """Give a state to a value that is not complete yet; raise Refused."""
        match built, state:
            case np.ndarray(), (int(), shape, _DataType(dtype=dtype), fortran, bytes(content)):
                filled = self._array(shape, dtype, content, bool(fortran))
                complete: Any = (1, filled.shape, dtype, bool(fortran), content)
                built.__setstate__(complete)
            case _DataType(), (int(), "<" | ">" | "|" | "=" as order, None, None, None, *_):
                built.dtype = built.dtype.newbyteorder(order)
            case Record(), _:
                built.state = state
            case _:
                raise Refused(f"a state of {type(state).__name__} for {type(built).__name__}")

    def _array(
        self, shape: Any, dtype: np.dtype, content: bytes | bytearray, fortran: bool = False
    ) -> np.ndarray:
        """Return an array of these bytes, which must be as many as it has."""
        # The product of long numbers would take seconds to compute.
        if len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
            raise TypeError("an array of no shape")
        if math.prod(shape) * dtype.itemsize != len(content):
            raise ValueError(f"an array {shape} of {len(content)} bytes")
        self._count(len(content))
        return np.ndarray(shape, dtype, content, order="F" if fortran else "C")


class _Machine:
    """The stack of a pickle's instructions, and its memo of earlier values."""

    def __init__(self, objects: Objects):
        self._objects = objects
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below each mark
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def mark(self) -> None:
        """Begin a new stack, whose values become the items of something."""
        self._below.append(self.stack)
        self.stack = []

    def items(self) -> list[Any]:
        """Return the values since the last mark, and remove it."""
        items, self.stack = self.stack, self._below.pop()
        return items

    def take(self, count: int) -> tuple[Any, ...]:
        """Return the uppermost values, which are removed."""
        taken = self.stack[-count:]
        if len(taken) < count:
            raise IndexError("the stack is empty")
        del self.stack[-count:]
        return tuple(taken)

    def extend(self, items: list[Any]) -> None:
        """Append to the list on the stack."""
        _as(list, self.stack[-1]).extend(items)

    def add(self, items: list[Any]) -> None:
        """Add to the set on the stack."""
        _as(set, self.stack[-1]).update(map(as_key, items))

    def set_items(self, items: list[Any]) -> None:
        """Set keys and values, in turn, of the dictionary on the stack."""
        _as(dict, self.stack[-1]).update(_pairs(items))

    def remember(self, index: int | None = None) -> None:
        """Keep the uppermost value in the memo; without an index, at its end."""
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def name(self, module: Any, name: Any) -> None:
        """Put a name on the stack, if it is one of those that are known."""
        self.stack.append(self._objects.find(Name(_as(str, module), _as(str, name))))

    def call(self) -> None:
        """Replace a name and a tuple of arguments by what the name makes of them."""
        name, arguments = self.take(2)
        self.stack.append(self._objects.call(_as(Name, name), _as(tuple, arguments)))

    def make(self) -> None:
        """Replace the name of a class and a tuple of arguments by a record of both."""
        name, arguments = self.take(2)
        self.stack.append(self._objects.record(_as(Name, name), _as(tuple, arguments)))

    def build(self) -> None:
        """Give a state to the value below it."""
        state = self.stack.pop()
        self._objects.build(self.stack[-1], state)


def _as(kind: type, value: Any) -> Any:
    """Return a value of this type; raise TypeError if it is none."""
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return the dictionary of keys and values in turn."""
    return dict(zip(map(as_key, items[::2]), items[1::2], strict=True))


# What each instruction does with the machine and its argument; an instruction that calls code of
# another program, or asks it for a value, is none of them.
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING "
        "SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE "
        "BINUNICODE8 BYTEARRAY8".split(),
        _Machine.push,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.items(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "LIST": lambda machine, _: machine.push(machine.items()),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.items()),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.items())),
    "TUPLE1": lambda machine, _: machine.push(machine.take(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.take(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.take(3)),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "DICT": lambda machine, _: machine.push(_pairs(machine.items())),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.take(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.items()),
    "EMPTY_SET": lambda machine, _: machine.push(set()),
    "ADDITEMS": lambda machine, _: machine.add(machine.items()),
    "FROZENSET": lambda machine, _: machine.push(frozenset(map(as_key, machine.items()))),
    **dict.fromkeys("PUT BINPUT LONG_BINPUT".split(), _Machine.remember),
    "MEMOIZE": lambda machine, _: machine.remember(),
    **dict.fromkeys(
        "GET BINGET LONG_BINGET".split(), lambda machine, at: machine.push(machine.memo[at])
    ),
    "GLOBAL": lambda machine, argument: machine.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.take(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.make(),
    "BUILD": lambda machine, _: machine.build(),
}
