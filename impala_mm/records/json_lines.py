"""Reading files with a JSON object per line, such as metrics.jsonl, even if a crash cut one off."""

import contextlib
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from impala_mm.runtime.safe_files import from_json

_MOST_BEGINS = 50  # places in a damaged line at which a row may begin: a row has fewer objects


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file; lines without an object are left out. Raises OSError."""
    return parse_lines(path.read_text(errors="replace").splitlines())


def parse_lines(lines: list[str]) -> list[dict[str, Any]]:
    """Return the objects of lines of such a file.

    A process that is killed may leave half a line, and the next one appends to it: then the object
    at the line's end is returned, which is the largest one that begins within the line.
    """
    found = []
    for line in lines:
        for begin in itertools.islice(re.finditer("{", line), _MOST_BEGINS):
            with contextlib.suppress(ValueError):
                found.append(from_json(line[begin.start() :]))
                break
    return found


def find_current(frames: Sequence[float], seconds: Sequence[float]) -> list[bool]:
    """Return for each row of metrics whether no later row has fewer frames or seconds.

    A run that was killed resumes from its last checkpoint: its next rows replace some before.
    """
    least, found = [math.inf, math.inf], list[bool]()
    for counts in zip(reversed(frames), reversed(seconds), strict=True):
        found.append(all(count <= most for count, most in zip(counts, least, strict=True)))
        least = list(map(min, counts, least))
    return found[::-1]


def drop_replaced(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of metrics that count, see `find_current`."""
    rows = [row for row in rows if {"frames", "seconds"} <= row.keys()]
    frames, seconds = ([row[key] for row in rows] for key in ("frames", "seconds"))
    return list(itertools.compress(rows, find_current(frames, seconds)))
