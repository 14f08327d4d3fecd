"""The values that names in Dopamine's pickles stand for; `pickles` calls this, and executes none.

numpy's arrays, numbers and types           NumPy arrays, whose bytes are in the pickle
jax's arrays                                the NumPy array that each of them contains
FrozenDict, OrderedDict, set                dictionaries and sets
the states of optax and flax's optimizers   a `Record` of what they were made with
"""

import math
import re
from typing import Any, NamedTuple

import numpy as np


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
