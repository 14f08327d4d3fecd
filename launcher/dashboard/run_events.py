"""The events of a run: starts, checkpoints, tests, failures and restarts, hosts that were cut off.

They come from the records in the run's folder, from supervisors' and the controller's lines in
logs, and from changes of states while the dashboard is running. Each has a time of the clock, and
the training time and frames that belong to it, as far as they are known.
"""

import contextlib
import datetime
import os
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.records import run_contents
from impala_mm.runtime.safe_files import open_inside, text_reader
from launcher.dashboard.log_reader import find_logs
from launcher.dashboard.row_history import RowHistory
from launcher.dashboard.run_finder import FoundRun
from launcher.dashboard.run_status import Status
from launcher.follow import controller

_MOST_EVENTS = 400
_TAIL_BYTES = 1 << 16  # of a log that is searched when a run is opened
_DAY = 86400.0
_STAMPED = re.compile(rb"^(\d\d):(\d\d):(\d\d) (.*)$", re.MULTILINE)
_FAILED = re.compile(r"; (it|they|the run) ")  # why a process failed, and what follows
_CUT = re.compile(r"unreachable|connected again|cannot reach|lost")


class Event(NamedTuple):
    """Something that happened in a run."""

    time: float  # in seconds since 1970
    kind: str  # start, checkpoint, test, failure, cut, note
    text: str
    frames: float | None = None
    seconds: float | None = None  # of training


class RunEvents:
    """The events of one run; `update` looks for new ones."""

    def __init__(self, found: FoundRun, history: RowHistory):
        self._found, self._logdir, self._history = found, found.logdir, history
        self._read: dict[str, tuple[float, list[Event]]] = {}  # by source: when it was modified
        self._seen: deque[Event] = deque(maxlen=_MOST_EVENTS)  # in states, and once in logs
        self._placed: dict[Event, Event] = {}  # those of them whose training time is known
        self._states: dict[str, str] = {}
        self._is_first = True

    def update(self, known: Status) -> None:
        """Look at the present states; the first time also at the ends of logs."""
        if self._is_first:
            # Of a run whose processes are not known (any more), these are the logs in its folder.
            for name, log in find_logs(self._found, known).items():
                is_controllers = log.name == controller.LOG_FILE
                self._seen.extend(self._read_log(name, log, every_line=is_controllers))
        for process in known["processes"]:
            name, failure = process["name"], process["failure"]
            if failure:
                text = f"{name} on {process['host']} failed: {failure['why']}; {failure['next']}"
                event = Event(failure["time"], "failure", text)
                if not any(_is_same(event, other) for other in self._seen):
                    self._seen.append(event)
            before = self._states.get(name, process["state"])
            if (process["state"] == "away") != (before == "away"):
                became = "is unreachable" if process["state"] == "away" else "is reachable again"
                text = f"{process['host']} {became}"
                recent = list(self._seen)[-50:]
                if not any(e.text == text and e.time > time.time() - 60 for e in recent):
                    self._seen.append(Event(time.time(), "cut", text))
            self._states[name] = process["state"]
        self._is_first = False

    def _read_log(self, name: str, path: Path, every_line: bool = False) -> Iterable[Event]:
        """Yield events for the supervisor's lines at a log's end, which have a time of the day."""
        for at, line in stamped_lines(path):
            if every_line or _FAILED.search(line):
                kind = "cut" if _CUT.search(line) else "failure" if not every_line else "note"
                yield Event(at, kind, f"{name}: {line}")

    def list_events(self) -> list[dict[str, Any]]:
        """Return all events, the oldest first."""
        folder = self._logdir
        recorded = [
            *self._records("starts.jsonl", lambda: self._starts(folder)),
            *self._records("checkpoints", lambda: self._checkpoints(folder)),
            *self._records("evaluations.jsonl", lambda: self._tests(folder)),
        ]
        anchors = sorted((e.time, e.seconds) for e in recorded if e.seconds is not None)
        with contextlib.suppress(OSError):  # the run's folder was just removed
            if "seconds" in self._history.last:
                written = (folder / "metrics.jsonl").stat().st_mtime
                anchors.append((written, float(self._history.last["seconds"])))
        found = recorded + [self._placed.get(e) or self._place(e, anchors) for e in self._seen]
        return [event._asdict() for event in sorted(found)[-_MOST_EVENTS:]]

    def _place(self, event: Event, anchors: list[tuple[float, float]]) -> Event:
        """Return an event with its training time and frames, by times at which these are known."""
        i = bisect_left(anchors, (event.time, 0.0))
        if i == len(anchors):
            return event
        seconds = max(0.0, anchors[i][1] - (anchors[i][0] - event.time))
        if i:
            seconds = max(seconds, anchors[i - 1][1])
        placed = event._replace(seconds=seconds, frames=self._history.frames_at(seconds))
        self._placed[event] = placed
        if len(self._placed) > 2 * _MOST_EVENTS:
            self._placed = {e: self._placed[e] for e in self._seen if e in self._placed}
        return placed

    def _records(self, name: str, read: Any) -> list[Event]:
        """Return the events of a file, which is read again only if it has changed."""
        try:
            modified = (self._logdir / name).stat().st_mtime
        except OSError:
            return []
        before, events = self._read.get(name, (0.0, []))
        if modified != before:
            events = list(read())
            self._read[name] = modified, events
        return events

    def _starts(self, folder: Path) -> Iterable[Event]:
        for i, record in enumerate(_records_of(folder, "starts.jsonl")):
            at, frames = _parse_time(record.get("time")), record.get("frames")
            if at and run_contents.is_number(frames):
                what = "resumed" if i else "started"
                seconds = self._history.seconds_at(frames) if frames else 0.0
                where = f" on {record['host']}" if "host" in record else ""
                yield Event(at, "start", what + where, frames, seconds)

    def _checkpoints(self, folder: Path) -> Iterable[Event]:
        for about in run_contents.read_checkpoints(folder, text_reader(folder)):
            # It was just removed, or about.json is damaged.
            with contextlib.suppress(OSError, TypeError, ValueError, OverflowError):
                path = folder / "checkpoints" / about["path"] / "about.json"
                value = about.get("episode_return")
                mean = f", mean return {value:.2f}" if run_contents.is_number(value) else ""
                best = " (the best)" if about["best"] else ""
                text = f"checkpoint {about['path'].lstrip('0') or '0'}{mean}{best}"
                frames, seconds = float(about["frames"]), float(about["seconds"])
                yield Event(path.stat().st_mtime, "checkpoint", text, frames, seconds)

    def _tests(self, folder: Path) -> Iterable[Event]:
        for record in _records_of(folder, "evaluations.jsonl"):
            at, returns = _parse_time(record.get("time")), run_contents.game_values(record)
            frames = record.get("frames")
            if at and returns and run_contents.is_number(frames):
                text = (
                    f"test: mean return {sum(returns) / len(returns):.2f} of {len(returns)} games"
                )
                yield Event(at, "test", text, frames, self._history.seconds_at(frames))


def _records_of(folder: Path, name: str) -> list[run_contents.Record]:
    return run_contents.read_records(folder / name, text_reader(folder))


def stamped_lines(path: Path) -> list[tuple[float, str]]:
    """Return (time, text) of the lines at a log's end that begin with a time of the day.

    The day follows from the time at which the log was modified last, and from the lines' order.
    """
    try:
        with open_inside(path, path.parent) as file:
            about = os.fstat(file.fileno())
            file.seek(max(0, about.st_size - _TAIL_BYTES))
            content = file.read()
    except OSError:
        return []
    found: list[tuple[float, str]] = []
    latest = about.st_mtime + 1
    for match in reversed(list(_STAMPED.finditer(content))):
        hour, minute, second = (int(part) for part in match.groups()[:3])
        if hour > 23 or minute > 59 or second > 59:
            continue
        day = datetime.datetime.fromtimestamp(latest).replace(microsecond=0)
        at = day.replace(hour=hour, minute=minute, second=second).timestamp()
        if at > latest:
            at -= _DAY
        found.append((at, match[4].decode(errors="replace")))
        latest = at
    return found[::-1]


def _is_same(event: Event, other: Event) -> bool:
    """Return whether a log and a state tell of the same failure."""
    name = event.text.partition(" ")[0]
    is_of_same = other.text.startswith((f"{name}:", f"{name} "))
    return is_of_same and abs(event.time - other.time) < 2


def _parse_time(value: Any) -> float:
    """Return a recorded time in seconds since 1970; 0 if it is none."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):  # the record is damaged
        if run_contents.is_number(value):
            return float(value)
        return datetime.datetime.fromisoformat(value).timestamp()
    return 0.0
