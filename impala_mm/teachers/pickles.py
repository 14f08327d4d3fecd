"""A reader of pickles that executes nothing of them: `dopamine` reads checkpoints with it.

A pickle is a program that may call any function of any module. This reader imports nothing: each
name in a pickle becomes a function of ours, or is refused.

numpy's arrays, numbers and types           NumPy arrays, whose bytes are in the pickle
jax's arrays                                the NumPy array that each of them contains
FrozenDict, OrderedDict, set                dictionaries and sets
the states of optax and flax's optimizers   nothing: nobody reads them

A hostile file cannot take all memory either: its instructions and the bytes of arrays are counted.
"""

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

from impala_mm.config.messages import join_lines
from impala_mm.teachers.teacher import NoTeacher

MOST_BYTES = 2**31  # of a file
_MOST_INSTRUCTIONS = 4_000_000  # a checkpoint of 200 iterations of 500 games has under a million
_DTYPE = re.compile(r"[<>|=]?([biu]1|[iuf][248])")
_OPTIMIZERS = ("optax.", "flax.optim.")
_NAMES = {
    "numpy.dtype": "_dtype",
    "numpy.core.multiarray._reconstruct": "_array",
    "numpy.core.multiarray.scalar": "_scalar",
    "numpy.core.numeric._frombuffer": "_of_buffer",
    "jax._src.array._reconstruct_array": "_of_jax",
    "jax._src.device_array.reconstruct_device_array": "_of_jax",
    "flax.core.frozen_dict.FrozenDict": "_dictionary",
    "collections.OrderedDict": "_dictionary",
    "builtins.set": "_set",
    "builtins.frozenset": "_set",
}
# What pickle's own reader raises for one that is damaged.
_DAMAGES = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, MemoryError,
    TypeError, ValueError,
)  # fmt: skip


class BadPickle(NoTeacher):
    """A pickle is damaged, too large, or has what is not read; the message says which file."""


class _Refused(Exception):
    """A pickle has something that is not read; the message names it."""


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
    try:
        _check_instructions(content)
        return _Reader(content).load()
    except _Refused as refused:
        raise BadPickle(
            f"{name} has {refused}, which no checkpoint of Dopamine has. A pickle "
            f"may contain any program, so nothing of this file is executed and it is not read: "
            f"give the checkpoint that Dopamine wrote"
        ) from None
    except _DAMAGES as error:
        raise BadPickle(
            f"{name} is damaged, cut short or not a pickle ({join_lines(error)[:100]}): copy it "
            f"again from where it was written"
        ) from None


def _check_instructions(content: bytes) -> None:
    """Raise _Refused or ValueError for instructions that take more memory than the file."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count == _MOST_INSTRUCTIONS:
            raise _Refused(f"over {_MOST_INSTRUCTIONS:,} instructions")
        if opcode.name.endswith("PUT") and int(argument or 0) > count:
            raise ValueError("a place in its memo that is too large")


class _Unread:
    """An object that nobody reads: it takes any arguments and any state."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> "_Unread":
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Ignore the state."""


class _DataType:
    """A NumPy type; its byte order follows when it is built."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype

    def __setstate__(self, state: tuple) -> None:
        """Take the byte order; a type of fields or objects, or another shape, has more."""
        _, order, *others = state
        if order not in ("<", ">", "|", "=") or others[:3] != [None] * 3:
            raise _Refused("a type of arrays that are not of numbers")
        self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray):
    """An array whose shape, type and bytes follow when it is built."""

    reader: "_Reader"

    def __setstate__(self, state: tuple) -> None:
        """Take what NumPy has written of an array."""
        _, shape, kind, fortran, content = state
        self.reader.check(shape, kind, content)
        built: Any = (1, shape, kind.dtype, bool(fortran), content)
        super().__setstate__(built)
        del self.reader  # which holds the whole file; an array is built once


class _Reader(pickle.Unpickler):
    """A reader for which a name is one of its own methods, within the bytes that a file has."""

    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content))
        # The bytes of each array stand in the pickle. One that takes the same for many arrays was
        # not written by NumPy.
        self._bytes_left = len(content)

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name; raise _Refused for one that no checkpoint has."""
        if module.startswith(_OPTIMIZERS):
            return _Unread
        whole = f"{module}.{name}"
        if whole == "numpy.ndarray":
            return "ndarray"  # which it gives to _reconstruct
        if stands := _NAMES.get(whole.replace("numpy._core", "numpy.core", 1)):
            return getattr(self, stands)
        raise _Refused(f"the name {whole[:80]!r}")

    def check(self, shape: Any, kind: Any, content: Any) -> None:
        """Raise an error unless an array of this shape and type has these bytes."""
        if not (isinstance(kind, _DataType) and isinstance(content, bytes | bytearray)):
            raise _Refused("an array whose content is not bytes")
        # The product of long numbers would take seconds to compute.
        if len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
            raise TypeError("an array of no shape")
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise ValueError(f"an array {shape} of {len(content)} bytes")
        self._count(len(content))

    def _count(self, size: int) -> None:
        """Count bytes of arrays and elements of sets; raise _Refused if the file has fewer."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise _Refused("more bytes in its arrays and sets than in the file")

    def _dtype(self, code: str, *_: Any) -> _DataType:
        if not _DTYPE.fullmatch(code):
            raise _Refused(f"an array of type {code[:20]!r}")
        return _DataType(np.dtype(code))

    def _array(self, *_: Any) -> _Array:
        made = np.empty([0], np.int8).view(_Array)
        made.reader = self
        return made

    def _scalar(self, kind: _DataType, content: bytes) -> Any:
        return self._of_buffer(content, kind, (), "C")[()]

    def _of_buffer(
        self, content: bytes, kind: _DataType, shape: tuple[int, ...], order: str
    ) -> np.ndarray:
        self.check(shape, kind, content)
        return np.ndarray(shape, kind.dtype, content, order="F" if order == "F" else "C")

    def _of_jax(self, _: Any, arguments: tuple, state: tuple, *__: Any) -> _Array:
        made = self._array(*arguments)
        made.__setstate__(state)
        return made

    def _dictionary(self, content: dict | None = None) -> dict:
        if content is not None and not isinstance(content, dict):
            raise TypeError("a dictionary of something else")
        return {} if content is None else content

    def _set(self, items: list) -> set:
        self._count(len(items))  # one list may be named many times
        return set(items)
