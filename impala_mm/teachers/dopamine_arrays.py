"""Arrays in the compressed files of a Dopamine replay; `dopamine_replay` reads them.

Nothing in them is executed: an array of objects, which NumPy would unpickle, is refused.
"""

import contextlib
import gzip
import math
import tokenize
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from impala_mm.config.messages import join_lines
from impala_mm.teachers.kinds import NoTeacher

_MOST_ROWS, _MOST_IN_ROW = 2**27, 2**22  # Dopamine keeps a million frames of 84x84


class StoredArray:
    """An array in a compressed file, which is read row by row."""

    def __init__(self, path: Path):
        """Open the file; raise NoTeacher if it is damaged."""
        self._path = path
        with refusing_damage(path), contextlib.ExitStack() as opened:
            self._file = opened.enter_context(gzip.open(path))
            self.shape, self.dtype = _header(self._file)
            opened.pop_all()

    def __enter__(self) -> "StoredArray":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def row(self) -> np.ndarray:
        """Return the next row; raise NoTeacher if it is damaged."""
        return self._next(self.shape[1:])

    def all(self) -> np.ndarray:
        """Return the complete array; raise NoTeacher if it is damaged."""
        return self._next(self.shape)

    def _next(self, shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape) * self.dtype.itemsize
        with refusing_damage(self._path):
            content = self._file.read(size)
            if len(content) < size:
                raise EOFError("it ends too early")
        return np.frombuffer(content, self.dtype).reshape(shape)


def _header(file: gzip.GzipFile) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and type in NumPy's header of an array."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"format {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "biuf" or (fortran and len(shape) > 1):
        raise ValueError(f"an array of type {dtype}")
    # Of a negative size, reading would return all that the file expands to.
    negative = any(size < 0 for size in shape)
    if negative or math.prod(shape[:1]) > _MOST_ROWS or math.prod(shape[1:]) > _MOST_IN_ROW:
        raise ValueError(f"an array of shape {shape}")
    return shape, dtype


def read_array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of this shape; raise NoTeacher."""
    with StoredArray(path) as array:
        if array.shape != shape:
            raise NoTeacher(
                f"{path} has shape {list(array.shape)} in place of {list(shape)}: its files are "
                f"not of the same replay, so copy them again"
            )
        return array.all()


def decompress(path: Path, most: int) -> bytes:
    """Return a compressed file's content; raise NoTeacher if it has more bytes than that."""
    with refusing_damage(path), gzip.open(path) as file:
        content = file.read(most + 1)
        if len(content) > most:
            raise ValueError("it is too long")
        return content


@contextlib.contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Raise NoTeacher for errors of reading a file."""
    try:
        yield
    except FileNotFoundError:
        raise NoTeacher(
            f"{path} does not exist: a replay is complete with all its files, so copy this one, too"
        ) from None
    except (OSError, EOFError, ValueError, tokenize.TokenError, zlib.error) as error:
        raise NoTeacher(
            f"{path} is damaged or cut short ({join_lines(error)[:100]}): copy it again"
        ) from None
