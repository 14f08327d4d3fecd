"""A run that a page shows, or whose use of hosts is recorded: all that is known of it."""

import time
from typing import Any

from impala_mm.records import run_contents
from launcher.dashboard.host_usage import HostUsage
from launcher.dashboard.row_history import Row, RowHistory
from launcher.dashboard.run_events import RunEvents
from launcher.dashboard.run_finder import FoundRun, describe_settings
from launcher.dashboard.run_status import GpuMeter, Status, read_status


class WatchedRun:
    """One run; `update` reads what has changed in its files."""

    def __init__(self, found: FoundRun, gpus: GpuMeter):
        self.found, self._gpus = found, gpus
        self.history = RowHistory(found.logdir / "metrics.jsonl")
        self.usage = HostUsage()
        self._events = RunEvents(found.logdir, self.history)
        self.status: Status = {}
        self.updated = 0.0  # time.monotonic() of the last update

    def update(self) -> list[Row]:
        """Read status and rows; return the new rows."""
        rows = self.history.read()
        self.status = read_status(self.found, self._gpus)
        self.usage.add(self.status)
        self._events.update(self.status)
        self.updated = time.monotonic()
        return rows

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
        return {
            "events": self._events.list_events(),
            "videos": [
                {"name": path.stem, "time": path.stat().st_mtime}
                for path in run_contents.list_videos(self.found.logdir)
            ],
        }
