"""A run that a page shows, or whose events are followed: all that is known of it."""

import contextlib
import time
from pathlib import Path
from typing import Any

from impala_mm.records import host_use, run_contents
from launcher.dashboard.row_history import Row, RowHistory
from launcher.dashboard.run_events import RunEvents
from launcher.dashboard.run_finder import FoundRun, describe_settings, key_of
from launcher.dashboard.run_status import Status, read_status, unreadable_status


class WatchedRun:
    """One run; `update` reads what has changed in its files."""

    def __init__(self, found: FoundRun):
        self.found = found
        self.history = RowHistory(found.logdir / "metrics.jsonl")
        self.hosts = RowHistory(found.logdir / host_use.FILE, replaces=False)
        self._events = RunEvents(found, self.history)
        self._videos: dict[str, Path] = {}
        self._videos_changed: list[int] = []
        self.status: Status = {}
        self._number_of_updates: Any = None
        self.row_time: float | None = None
        self.update_time: float | None = None
        self.updated = 0.0  # time.monotonic() of the last update

    def update(self) -> tuple[list[Row], list[Row]]:
        """Read status and rows; return the new rows, and those of hosts."""
        rows, hosts = self.history.read(), self.hosts.read()
        self.status = read_status(self.found)
        self._events.update(self.status)
        self._follow_updates()
        self.updated = time.monotonic()
        return rows, hosts

    def _follow_updates(self) -> None:
        """Note when the last row was written, and when the number of updates changed."""
        if row := self.history.last:
            self.row_time = _changed(self.found.logdir / "metrics.jsonl") / 1e9
            if row.get("updates") != self._number_of_updates:
                self._number_of_updates, self.update_time = row.get("updates"), self.row_time

    def fail(self, error: Exception) -> None:
        """Make an error of the last update this run's status."""
        self.status = unreadable_status(self.found, error)
        self.updated = time.monotonic()

    def describe(self) -> dict[str, Any]:
        """Return what its headline says."""
        head = {name: value for name, value in self.status.items() if name != "processes"}
        return {
            "key": self.found.key,
            "status": head,
            "about": describe_settings(self.found.logdir),
            "row": self.history.last,
            "keys": self.history.keys,
        }

    def describe_events(self) -> dict[str, Any]:
        """Return its events and its videos."""
        videos = []
        for key, path in self.videos().items():
            with contextlib.suppress(OSError):  # one that was just removed
                videos.append({"key": key, "name": path.stem, "time": path.stat().st_mtime})
        return {"events": self._events.list_events(), "videos": videos}

    def videos(self) -> dict[str, Path]:
        """Return its videos by key; a key stays, whatever videos are added or removed."""
        changed = [_changed(self.found.logdir / name) for name in ("videos", "evaluations.jsonl")]
        if changed != self._videos_changed:
            found = run_contents.list_videos(self.found.logdir)
            self._videos = {key_of(path): path for path in found}
            self._videos_changed = changed
        return self._videos


def _changed(path: Path) -> int:
    """Return when a file or folder was changed; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
