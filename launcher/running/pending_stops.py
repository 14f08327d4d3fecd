"""Starts of runs that were to end on a host that did not answer: they end when it does.

~/.local/state/impala_mm/unfinished.json     {place: [id, ...]}
"""

import contextlib
import fcntl
import os
from collections.abc import Callable

from launcher.node.run_registry import home
from launcher.node.task import read_json, write_json

_MOST = 100  # of one place


class Unfinished:
    """Known to every frontend of this user on this machine."""

    def __init__(self) -> None:
        self._path = home().parent / "unfinished.json"

    def of(self, place: str) -> list[str]:
        """Ids."""
        return read_json(self._path).get(place, [])

    def places(self) -> list[str]:
        """That something is left on."""
        return list(read_json(self._path))

    def add(self, place: str, start: str) -> None:
        """It did not answer."""
        self._change(place, lambda ids: [*ids, start][-_MOST:])

    def done(self, place: str) -> None:
        """Nothing is left there."""
        self._change(place, lambda _: [])

    def _change(self, place: str, change: Callable[[list[str]], list[str]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        with contextlib.closing(os.fdopen(lock)):
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = read_json(self._path)
            ids = change(known.pop(place, []))
            write_json(self._path, known | ({place: ids} if ids else {}))
