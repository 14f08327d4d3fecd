"""Reads the logs of a run's processes in parts: the end, the lines before or after, and a search.

Places in a log are numbers of bytes from its beginning. After a log was rotated it begins anew,
which its inode tells.
"""

import os
from pathlib import Path
from typing import Any

from impala_mm.runtime.safe_files import open_inside
from launcher.dashboard.run_finder import FoundRun
from launcher.dashboard.run_status import Status

_PART_BYTES = 1 << 16  # of a log in one answer
_BLOCK_BYTES = 1 << 20  # of a log that is searched at a time
_SEARCHED_BYTES = 64 << 20  # from the end, of a search
_MOST_LINES = 200  # that a search returns
_MOST_LETTERS = 4000  # of a line


def find_logs(found: FoundRun, known: Status) -> dict[str, Path]:
    """Return the logs of a run on this machine, by name; no other file is ever read.

    Those of processes on other hosts are here once a frontend has copied them. What the states of
    such processes say may be wrong: it names no file.
    """
    logs, here = {}, _processes_here(found)
    for process in known["processes"]:
        name, paths = process["name"], [found.logdir / f"{process['name']}.log"]
        if name in here and Path(process["log"]).name == f"{name}.log":
            paths.append(Path(process["log"]))
        if "/" not in name and (path := next(filter(os.path.isfile, paths), None)):
            logs[name] = path
    for path in sorted(found.logdir.glob("*.log")):
        if os.path.isfile(path) and path not in logs.values():
            logs[path.stem] = path
    return logs


def _processes_here(found: FoundRun) -> set[str]:
    """Return the names of the processes whose supervisors are on this machine."""
    record = found.read_record()
    return {p.name for p in record.processes if not p.place} if record else set()


def read_part(path: Path, before: int | None = None, after: int | None = None) -> dict[str, Any]:
    """Return the lines that end at `before` or begin at `after`, by default those at the end.

    A line that does not fit in a part is returned in pieces. Raises OSError.
    """
    with open_inside(path, path.parent) as file:
        about = os.fstat(file.fileno())
        if after is not None and after <= about.st_size:
            begin = max(0, after)
        else:
            end = about.st_size if before is None else max(0, min(before, about.st_size))
            begin = max(0, end - _PART_BYTES)
        file.seek(begin)
        content = file.read(_PART_BYTES if after is not None or before is None else end - begin)
    if begin and after is None:  # the rest of a line
        cut = content.find(b"\n", 0, -1) + 1
        begin, content = begin + cut, content[cut:]
    end_of_lines = content.rfind(b"\n") + 1
    if before is None and (end_of_lines or len(content) < _PART_BYTES):
        content = content[:end_of_lines]  # the last line may not be complete yet
    return {
        "lines": _lines(content, begin),
        "begin": begin,
        "end": begin + len(content),
        "size": about.st_size,
        "inode": about.st_ino,
    }


def search(path: Path, text: str) -> dict[str, Any]:
    """Return the last lines that contain `text`, in upper or lower case. Raises OSError."""
    wanted, found = text.encode().lower(), list[dict[str, Any]]()
    with open_inside(path, path.parent) as file:
        size = end = os.fstat(file.fileno()).st_size
        rest = b""
        while end and len(found) < _MOST_LINES and size - end < _SEARCHED_BYTES:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            content = file.read(end - begin) + rest
            cut = content.find(b"\n") + 1 if begin else 0
            rest, end = content[:cut], begin
            lower = content.lower()
            at = lower.rfind(wanted)
            while at >= cut and len(found) < _MOST_LINES:
                first = lower.rfind(b"\n", 0, at) + 1
                last = lower.find(b"\n", at)
                line = content[first : None if last < 0 else last]
                found.append({"at": begin + first, "text": _decode(line)})
                at = lower.rfind(wanted, 0, first)
    return {"lines": found[::-1], "searched": size - end, "size": size}


def _lines(content: bytes, begin: int) -> list[dict[str, Any]]:
    found = []
    for line in content.removesuffix(b"\n").split(b"\n") if content else []:
        found.append({"at": begin, "text": _decode(line)})
        begin += len(line) + 1
    return found


def _decode(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\r")
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
