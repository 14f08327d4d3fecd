"""The rows of a run's metrics.jsonl or hosts.jsonl, kept as bins, whose number is bounded.

A bin is the mean, the lowest and the highest value of some successive rows. When there are too
many bins, neighbours are joined. Metrics of a resumed run replace those after its checkpoint.
"""

import math
import os
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from impala_mm.records.run_contents import parse_lines
from impala_mm.runtime.safe_files import open_inside

_CHUNK_BYTES = 1 << 20
_MOST_COLUMNS = 500  # a run may be resumed on other hosts again and again
Row = dict[str, Any]


class _Column:
    """One metric: in each bin its mean, lowest and highest value, NaN where no row has it."""

    def __init__(self, bins: int):
        self.mean, self.low, self.high = (array("d", [math.nan] * bins) for _ in range(3))
        self.count = 0  # values in the last bin

    @property
    def parts(self) -> tuple[array, array, array]:
        """The three arrays."""
        return self.mean, self.low, self.high

    def append(self) -> None:
        for part in self.parts:
            part.append(math.nan)
        self.count = 0

    def add(self, value: float) -> None:
        """Add a value to the last bin."""
        self.count += 1
        if self.count == 1:
            self.mean[-1] = self.low[-1] = self.high[-1] = value
            return
        self.mean[-1] += (value - self.mean[-1]) / self.count
        self.low[-1], self.high[-1] = min(self.low[-1], value), max(self.high[-1], value)

    def cut(self, bins: int) -> None:
        """Keep this number of bins."""
        for part in self.parts:
            del part[bins:]
        self.count = 1

    def join_neighbours(self) -> None:
        """Join each two bins; their number must be even."""
        for part, join in zip(self.parts, (_mean, min, max), strict=True):
            pairs = zip(part[::2], part[1::2], strict=True)
            part[:] = array("d", (_join(a, b, join) for a, b in pairs))
        self.count = 1


def _mean(a: float, b: float) -> float:
    return (a + b) / 2


def _join(a: float, b: float, join: Any) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else join(a, b)


class RowHistory:
    """The history of one run, which `read` continues."""

    def __init__(
        self,
        path: Path,
        bins: int = 300,
        keys: Sequence[str] = (),
        max_bytes: int = 4 << 20,
        replaces: bool = True,
    ):
        """Keep between `bins` and twice as many bins, of all numbers or of the metrics `keys`.

        Of a file that has more than `max_bytes` when it is first read, only some rows are read.
        With `replaces`, a row replaces those of as many frames or more.
        """
        self._path, self._bins, self._keys, self._max_bytes = path, bins, set(keys), max_bytes
        self._replaces = replaces
        self._offset, self._inode = 0, 0
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._count = 0  # bins
        self._stride, self._filled = 1, 0  # rows of a bin, and of the last bin
        self.last: Row = {}  # the last row, with its texts

    def read(self) -> list[Row]:
        """Read the rows that were written since the last call, and return them."""
        try:
            with open_inside(self._path, self._path.parent) as file:
                return self._read(file)
        except OSError:
            return []

    def _read(self, file: BinaryIO) -> list[Row]:
        about = os.fstat(file.fileno())
        if about.st_ino != self._inode or about.st_size < self._offset:  # another file
            self._clear()
            self._offset, self._inode = 0, about.st_ino
        if not self._offset and about.st_size > self._max_bytes:
            self._sample(file, about.st_size)
        found: list[Row] = []
        while self._offset < about.st_size:
            file.seek(self._offset)
            chunk = file.read(_CHUNK_BYTES)
            end = chunk.rfind(b"\n") + 1
            if not end:
                break  # the row is being written
            self._offset += end
            rows = parse_lines(chunk[:end].decode(errors="replace").splitlines())
            found += [row for row in rows if self._add(row)]
        return found

    def _sample(self, file: BinaryIO, size: int) -> None:
        """Read rows at places that are evenly spread over the file."""
        lengths = []
        for i in range(self._bins):
            file.seek(size * i // self._bins)
            if i:
                file.readline()  # the rest of a row
            line = file.readline()
            lengths.append(len(line) or 1)
            self._offset = file.tell()
            for row in parse_lines([line.decode(errors="replace")]):
                self._add(row)
        self._stride = max(1, round(size / self._bins / (sum(lengths) / len(lengths))))
        self._filled = self._stride

    def _add(self, row: Row) -> bool:
        """Add a row to the last bin, or to a new one; return whether it is one of metrics."""
        numbers = {name: value for name, value in row.items() if _is_finite(value)}
        if not {"frames", "seconds"} <= numbers.keys():
            return False
        if self._replaces and self._is_resumed(numbers):
            self._remove_from(numbers["frames"], numbers["seconds"])
        self.last = row
        if not self._count or self._filled >= self._stride:
            if self._count >= 2 * self._bins:
                self._join_neighbours()
            self._count, self._filled = self._count + 1, 0
            for column in self._columns.values():
                column.append()
        self._filled += 1
        for name, value in numbers.items():
            if self._keys and name not in self._keys:
                continue
            if name not in self._columns:
                if len(self._columns) >= _MOST_COLUMNS:
                    continue
                self._columns[name] = _Column(self._count)
            self._columns[name].add(float(value))
        return True

    def _is_resumed(self, numbers: Row) -> bool:
        return any(
            name in self.last and numbers[name] < self.last[name] for name in ("frames", "seconds")
        )

    def _remove_from(self, frames: float, seconds: float) -> None:
        """Remove the bins that reach these frames or seconds."""
        kept = self._count
        while kept and (
            self._columns["frames"].high[kept - 1] >= frames
            or self._columns["seconds"].high[kept - 1] >= seconds
        ):
            kept -= 1
        for column in self._columns.values():
            column.cut(kept)
        self._count, self._filled = kept, self._stride

    def _join_neighbours(self) -> None:
        for column in self._columns.values():
            column.join_neighbours()
        self._count, self._stride = self._count // 2, 2 * self._stride

    @property
    def keys(self) -> list[str]:
        """The metrics that are known."""
        return sorted(self._columns)

    def columns(self, keys: Sequence[str]) -> dict[str, dict[str, list[float | None]]]:
        """Return the bins of metrics: lists of means, and of lowest and highest values.

        The last point is the last row itself. The lists of lowest and highest values are left out
        where each bin is one row.
        """
        found = {}
        for key in keys:
            if key in self._columns:
                column, last = self._columns[key], self.last.get(key)
                names = ("mean", "low", "high") if self._stride > 1 else ("mean",)
                found[key] = {
                    name: [
                        *map(_shorten, part[:-1]),
                        _shorten(last if _is_finite(last) else part[-1]),
                    ]
                    for name, part in zip(names, column.parts, strict=False)
                }
        return found

    def seconds_at(self, frames: float) -> float | None:
        """Return the training seconds at a number of frames; None if it is not reached."""
        return self._convert("frames", "seconds", frames)

    def frames_at(self, seconds: float) -> float | None:
        """Return the frames at a training time; None if it is not reached."""
        return self._convert("seconds", "frames", seconds)

    def _convert(self, source: str, target: str, value: float) -> float | None:
        if not self._count:
            return None
        x, y = self._columns[source].mean, self._columns[target].mean
        i = bisect_left(x, value)
        if i in (0, len(x)):
            return None if i else y[0]
        return y[i - 1] + (y[i] - y[i - 1]) * (value - x[i - 1]) / (x[i] - x[i - 1])


def _is_finite(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


def _shorten(value: float) -> float | None:
    """Return a value with the digits that a chart can show, a time to 0.1 s; None for NaN."""
    return None if math.isnan(value) else float(f"{value:.11g}")
