"""Runs that were stopped while a host was unreachable: they are ended there once it is back.

~/.local/state/impala_mm/unfinished.json     {host id: [id of a start, ...]}
"""

import math
import os
from collections.abc import Callable
from typing import Any

from launcher.supervise import file_lock
from launcher.supervise.json_types import fits
from launcher.supervise.run_registry import runs_folder
from launcher.supervise.task import read_json, write_json

_MAX_PER_HOST = 100  # starts that are remembered for each host


class PendingStops:
    """The runs to end on hosts that were unreachable; all frontends of a user share them."""

    def __init__(self) -> None:
        self._path = runs_folder().parent / "unfinished.json"

    def starts_on(self, host_id: str) -> list[str]:
        """Return the ids of the starts to end on a host."""
        return _starts(read_json(self._path), host_id)

    def host_ids(self) -> list[str]:
        """Return the hosts that have starts to end."""
        return list(read_json(self._path))

    def add(self, host_id: str, start: str) -> None:
        """Record that a start must be ended on a host that is unreachable now."""
        self._update(host_id, lambda ids: [*ids, start][-_MAX_PER_HOST:])

    def clear(self, host_id: str) -> None:
        """Forget a host's starts, after all were ended."""
        self._update(host_id, lambda _: [])

    def _update(self, host_id: str, change: Callable[[list[str]], list[str]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = file_lock.acquire(self._path.with_suffix(".lock"), timeout=math.inf)
        assert lock is not None
        with os.fdopen(lock):
            content = read_json(self._path)
            pending = {each: _starts(content, each) for each in content}
            pending[host_id] = change(_starts(content, host_id))
            write_json(self._path, {each: ids for each, ids in pending.items() if ids})


def _starts(pending: dict[str, Any], host_id: str) -> list[str]:
    """Return the starts of a host in the file's content, which may be damaged."""
    starts: Any = pending.get(host_id)
    return starts if fits(starts, list[str]) else []
