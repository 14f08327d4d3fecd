"""Reads and writes small files, which may be damaged, of another version, or gone for the moment.

A class with annotated fields, a NamedTuple or a dataclass, is the form of a file: `from_json` is
the only check of what a run's files contain.
"""

import contextlib
import functools
import json
import os
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

# Seconds for which a new file is parsed each time: within a tick of the file system's clock,
# another one may take its place with the same inode, time and size.
_NEW_SECONDS = 0.1
Form = TypeVar("Form")
Parsed = TypeVar("Parsed")


class _Unfit(Exception):
    """An error: a value does not have the type that it should have."""


def from_json(form: type[Form], content: dict[str, Any]) -> Form | None:
    """Return an object of a class with these fields; None if one has another type, or is missing.

    Fields with a default may be missing. Fields that the class does not have are left out.
    """
    kinds = _fields_of(form)  # type: ignore[arg-type]
    try:
        values = {n: converted(v, kinds[n]) for n, v in content.items() if n in kinds}
        return form(**values)
    except (_Unfit, TypeError):  # a TypeError: a field without a default is missing
        return None


@functools.cache
def _fields_of(form: type) -> dict[str, Any]:
    return {name: kind for name, kind in get_type_hints(form).items() if not name.startswith("_")}


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value of JSON has a type such as `list[str]`, `dict[str, Any]` or `None`."""
    try:
        converted(value, kind)
    except _Unfit:
        return False
    return True


def converted(value: Any, kind: Any) -> Any:
    """Return a value of JSON as this type, such as `tuple[int, int] | None`. Raises _Unfit.

    Lists become tuples, and objects of JSON become objects of classes, where the type says so.
    """
    origin, inner = get_origin(kind), get_args(kind)
    found = None
    if kind is Any or type(value) is kind or (kind is float and type(value) is int):
        return value
    if isinstance(kind, types.UnionType) and types.NoneType in inner:
        others = [each for each in inner if each is not types.NoneType]
        return value if value is None else converted(value, others[0])
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        is_any_length = origin is list or inner[-1] is ...
        item_kinds = inner[:1] * len(value) if is_any_length else inner
        if len(item_kinds) == len(value):
            found = origin(map(converted, value, item_kinds))
    elif origin is dict and isinstance(value, dict):
        found = {name: converted(each, inner[1]) for name, each in value.items()}
    elif isinstance(value, dict) and hasattr(kind, "__annotations__"):
        found = from_json(kind, value)
    if found is None:
        raise _Unfit
    return found


class ParsedFile(Generic[Parsed]):
    """A JSON file that is parsed once for each content; threads may share it.

    A frontend asks for the record and the states with each report of each host.
    """

    def __init__(self, path: Path, parse: Callable[[dict[str, Any]], Parsed]):
        """Represent the file; `parse` gets its object, or an empty one if it has none."""
        self._path, self._parse = path, parse
        self._known: tuple[tuple[int, int, int], Parsed] | None = None
        self._reading = threading.Lock()  # so that of many threads only one parses a new content

    def read(self) -> Parsed:
        """Return what `parse` returns; it is shared by all callers, who must not change it."""
        with self._reading:
            try:
                # Opened, since a network file system may answer `stat` from its cache.
                with self._path.open("rb", buffering=0) as file:
                    about = os.fstat(file.fileno())
                    version = about.st_ino, about.st_mtime_ns, about.st_size
                    if self._known and self._known[0] == version:
                        return self._known[1]
                    content = file.read()
            except OSError:
                content, version = b"", (0, 0, 0)
            parsed = self._parse(parse_object(content))
            is_new = time.time() - version[1] / 1e9 < _NEW_SECONDS
            # Damaged content is read again: it may be repaired in place.
            self._known = (version, parsed) if parsed and not is_new else None
            return parsed


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file that only its owner can read; readers see the old or the new content."""
    work = path.with_name(f"{path.name}.{os.getpid()}")
    with open(work, "w", opener=private) as file:
        json.dump(content, file, allow_nan=False)
    work.replace(path)


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read if it is new: an opener for `open`."""
    return os.open(path, flags, 0o600)


def read_text(path: Path) -> str:
    """Return the text of a file; empty if there is none, or it cannot be read."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return ""


def file_size(path: str | Path) -> int:
    """Return the bytes of a file; 0 if there is none, or its file system fails."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none, or it cannot be read."""
    return parse_object(os.fsencode(read_text(path)))


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the object that a text of JSON contains; empty if it is none."""
    with contextlib.suppress(ValueError, RecursionError):  # the text is damaged
        content = json.loads(text)
        return content if isinstance(content, dict) else {}
    return {}


def is_gone(path: Path) -> bool:
    """Return whether there is no such file or folder.

    One that the file system does not let us ask for now, such as that of a ticket that has expired,
    may still be there.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
