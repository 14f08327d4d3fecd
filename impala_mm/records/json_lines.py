"""Reading files with a JSON object per line, such as metrics.jsonl, even if a crash cut one off."""

from pathlib import Path
from typing import Any

from impala_mm.runtime.strict_json import from_json


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file; lines without an object are left out. Raises OSError."""
    return parse_lines(path.read_text(errors="replace").splitlines())


def parse_lines(lines: list[str]) -> list[dict[str, Any]]:
    """Return the objects of lines of such a file.

    A process that is killed may leave half a line, and the next one appends to it: then the object
    at the line's end is returned.
    """
    found = []
    for line in lines:
        for text in (line, line[line.rfind("{") :]):
            try:
                value = from_json(text)
            except ValueError:
                continue
            found += [value] if isinstance(value, dict) else []
            break
    return found
