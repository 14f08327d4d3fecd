"""--track: send a run's settings, rows and files to a tracker.

`metrics_writer` hands over each row of metrics.jsonl on rank 0, and a thread passes it to the
tracker: one of `TRACKERS` (see `trackers`), or a class of the user's. Training does not wait for
it, and none of its errors ends a run.
"""

import queue
import threading
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from impala_mm.config import flags, user_modules
from impala_mm.config.errors import UserMistake
from impala_mm.config.messages import describe_error
from impala_mm.records import TRACKERS
from impala_mm.runtime.log import Say

_MAX_WAITING_ROWS = 1000  # rows waiting for the tracker, about half an hour of training
_LAST_ROWS_SECONDS = 20.0  # how long the end of a run waits until the tracker has the last rows
# Files of a run's folder that a tracker gets at the run's end, and their kinds.
_FILES = (("settings.json", "settings"), ("report.html", "report"), ("videos/*.mp4", "video"))
_Row = dict[str, Any] | None  # None marks the end


class TrackedRun(NamedTuple):
    """A run as a tracker sees it."""

    logdir: Path
    settings: dict[str, Any]  # all flags
    tags: list[str]  # those of --track_tags


class Tracker(Protocol):
    """A receiver of a run's rows and files; a class of yours is made without arguments.

    It is also made by the checks before a start, so that it can raise an error if a package is
    missing. All methods are called by one thread of the learner of rank 0; an exception ends the
    tracking.
    """

    def begin(self, run: TrackedRun) -> str:
        """Begin, or continue a run that was resumed; return a sentence for the user, or nothing.

        It is called before the first row.
        """

    def log(self, row: dict[str, float]) -> None:
        """Receive a row of metrics.jsonl; its `frames` say where in the run it is."""

    def add_file(self, path: Path, kind: str) -> None:
        """Receive a file at the run's end: its `settings`, its `report` or a `video`."""

    def finish(self) -> None:
        """End, once all rows and files were received."""


def make_tracker(track: str) -> Tracker:
    """Return the tracker that --track names; refuse what is none."""
    kind = _find(track)
    methods = ("begin", "log", "add_file", "finish")
    if lacks := [method for method in methods if not hasattr(kind, method)]:
        flags.refuse(f"--track={track}: it has no method {' or '.join(lacks)}")
    try:
        return kind()
    except UserMistake as error:
        flags.refuse(f"--track={track}: {error}")
    except Exception as error:
        flags.refuse(f"--track={track}: it cannot be made: {describe_error(error)}")


def _find(track: str) -> type[Any]:
    if track in TRACKERS:
        return TRACKERS[track]
    module, _, name = track.replace(":", ".").rpartition(".")
    try:
        kind = getattr(user_modules.import_module(module), name, None)
    except user_modules.BadModule as error:
        flags.refuse(
            f"--track={track}: write {' or '.join(TRACKERS.names)}, or a class of yours as "
            f"my_package.MyTracker: {error}"
        )
    if not isinstance(kind, type):
        flags.refuse(f"--track={track}: {module} has no class {name}")
    return kind


class Tracking:
    """The tracking of one run, which starts with the first row."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, say: Say):
        self._name, self._tracker, self._run, self._say = name, tracker, run, say
        self._rows: queue.Queue[_Row] = queue.Queue(_MAX_WAITING_ROWS)
        self._complained = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="tracking")

    def write(self, row: dict[str, Any]) -> None:
        """Queue a row without waiting; drop it if the queue is full: the tracker is too slow."""
        if not self._thread.ident:
            self._thread.start()
        if not self._thread.is_alive():  # it has failed and logged why
            return
        try:
            self._rows.put_nowait(dict(row))
        except queue.Full:
            self._complain("is too slow, rows are dropped")

    def end(self) -> None:
        """Wait until the tracker has all rows, but not longer than `_LAST_ROWS_SECONDS`."""
        if not self._thread.is_alive():
            return
        try:
            self._rows.put(None, timeout=1)
        except queue.Full:
            return
        self._thread.join(_LAST_ROWS_SECONDS)
        if self._thread.is_alive():
            self._complain("has not taken all rows")

    def _work(self) -> None:
        """Pass rows on until None is queued, then the run's files."""
        try:
            if said := self._tracker.begin(self._run):
                self._say(said)
            while (row := self._rows.get()) is not None:
                self._tracker.log(row)
            for pattern, kind in _FILES:
                for path in sorted(self._run.logdir.glob(pattern)):
                    self._tracker.add_file(path, kind)
            self._tracker.finish()
        except BaseException as error:  # a tracker of others must not end the run
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._complain(f"failed ({reason[:200]})")

    def _complain(self, what: str) -> None:
        """Log the first problem of the tracker, and no others."""
        if not self._complained:
            self._say(f"{self._name} {what}; training continues, metrics.jsonl has all rows")
        self._complained = True
