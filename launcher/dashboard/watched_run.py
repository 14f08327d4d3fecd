"""A run that a page shows, or whose events are followed: all that is known of it."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

from impala_mm.records import host_use, run_contents
from impala_mm.runtime.safe_files import open_inside, text_reader
from launcher.dashboard.row_history import Row, RowHistory
from launcher.dashboard.run_events import RunEvents
from launcher.dashboard.run_finder import FoundRun, describe_settings, key_of
from launcher.dashboard.run_status import Status, read_status, unreadable_status

_ABOUT = ("level_name", "algorithm", "agent_name", "seed")  # settings that the headline names


class WatchedRun:
    """One run; `update` reads what has changed in its files."""

    def __init__(self, found: FoundRun, videos: Path | None = None):
        """Read the run; it may also show videos that lie in the folder `videos`."""
        self.found = found
        # Resolved, as are the videos.
        self._video_folders = [found.logdir, *([videos.resolve()] if videos else [])]
        self.history = RowHistory(found.logdir / "metrics.jsonl")
        self.hosts = RowHistory(found.logdir / host_use.FILE, replaces=False)
        self._events = RunEvents(found, self.history)
        self._videos: dict[str, Path] = {}
        self._videos_changed: list[int] = []
        self._videos_elsewhere = 0  # that are in none of these folders
        self.status: Status = {}
        self._number_of_updates: Any = None
        # When the last row was written, and when the number of updates was seen to change, in
        # seconds since 1970.
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
        settings = describe_settings(self.found.logdir)
        return {
            "key": self.found.key,
            "status": head,
            "about": {name: settings[name] for name in _ABOUT if name in settings},
            "row": self.history.last,
            "keys": self.history.keys,
        }

    def describe_events(self) -> dict[str, Any]:
        """Return its events, its videos, and how many videos are not shown."""
        videos = []
        for key, path in self.videos().items():
            with contextlib.suppress(OSError):  # one that was just removed
                videos.append({"key": key, "name": path.stem, "time": path.stat().st_mtime})
        return {
            "events": self._events.list_events(),
            "videos": videos,
            "videos_elsewhere": self._videos_elsewhere,
        }

    def videos(self) -> dict[str, Path]:
        """Return its videos by key; a key stays, whatever videos are added or removed."""
        changed = [_changed(self.found.logdir / name) for name in ("videos", "evaluations.jsonl")]
        if changed != self._videos_changed:
            logdir = self.found.logdir
            listed = run_contents.list_videos(logdir, text_reader(logdir))
            found = list(dict.fromkeys(Path(os.path.realpath(path)) for path in listed))
            shown = [path for path in found if self._folder_of(path) and path.suffix == ".mp4"]
            self._videos = {key_of(path): path for path in shown}
            self._videos_elsewhere = sum(not self._folder_of(path) for path in found)
            self._videos_changed = changed
        return self._videos

    def open_video(self, key: str) -> BinaryIO:
        """Open one of its videos for reading. Raises OSError, and KeyError if there is none."""
        path = self.videos()[key]
        folder = self._folder_of(path)
        assert folder
        return open_inside(path, folder)

    def _folder_of(self, video: Path) -> Path | None:
        """Return the folder by which a video may be shown."""
        return next((f for f in self._video_folders if video.is_relative_to(f)), None)


def _changed(path: Path) -> int:
    """Return when a file or folder was changed; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
