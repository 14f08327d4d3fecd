"""The metrics of a run, written by rank 0 to metrics.jsonl and to TensorBoard's event files.

It writes what the run uses on each host to hosts.jsonl, and with --log_games complete games to
games.jsonl.

With --track, each row goes to a tracker, too (`tracking`).

With a full disk, rows are lost but the run continues: a message is logged when rows cannot be
written, and another one when they can be written again. TensorBoard's then begin another file.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata

from impala_mm.records import host_use, saved_variables
from impala_mm.records.metric_descriptions import format_description
from impala_mm.records.run_contents import render_markdown
from impala_mm.records.tracking import Tracking
from impala_mm.runtime.log import Say
from impala_mm.runtime.safe_files import to_json

_BUCKETS = 30  # buckets of a histogram
_UNWRITABLE = (OSError, tf.errors.OpError)  # what a full disk raises, in Python and TensorFlow
_HISTOGRAM = metadata.create_summary_metadata(display_name=None, description=None)


class MetricsWriter:
    """The metrics files of one run, which are only ever appended to."""

    def __init__(self, logdir: Path, say: Say, tracked: Tracking | None = None):
        self._say, self._tracked = say, tracked
        self._writes = True  # whether the last row could be written
        self._next_histograms = 20.0  # seconds from the start
        self.move(logdir)

    def move(self, logdir: Path) -> None:
        """Append to the files of this folder from now on."""
        self._file = (logdir / "metrics.jsonl").open("a", encoding="utf-8")
        self._hosts_file, self._games_file = logdir / host_use.FILE, logdir / "games.jsonl"
        self._events_folder = logdir / "events"
        self._events: tf.summary.SummaryWriter | None = None  # the next event opens a new file
        self._described: set[str] = set()  # metrics whose description TensorBoard has

    def write_settings(self, settings: dict[str, Any], frames: float) -> None:
        """Write a table of all settings for TensorBoard, at the frames where training starts."""
        try:
            with self._writing_events(frames):
                tf.summary.text("settings", render_markdown(settings))
        except _UNWRITABLE as error:
            reason = saved_variables.why_unwritable(error)
            self._say(f"the settings could not be written for TensorBoard ({reason})")

    def write(self, row: dict[str, Any]) -> None:
        """Write one row of metrics; its texts go only to metrics.jsonl."""
        numbers = {name: value for name, value in row.items() if not isinstance(value, str)}
        if self._tracked:
            self._tracked.write(numbers)
        try:
            self._file.write(to_json(row) + "\n")
            self._file.flush()
            # NumPy's numbers, since TensorFlow keeps a tensor of 0.8 kB for each Python number.
            with self._writing_events(row["frames"]):
                for name, value in numbers.items():
                    if name != "frames":
                        text = self._description(name)
                        tf.summary.scalar(name, np.float32(value), description=text)
        except _UNWRITABLE as error:
            if self._writes:
                reason = saved_variables.why_unwritable(error)
                self._say(f"metrics cannot be written ({reason}); training continues")
            self._writes = False
        else:
            if not self._writes:
                self._say("metrics are written again")
            self._writes = True

    def write_hosts(self, row: dict[str, float]) -> None:
        """Write a row of what the run uses on each host, at this time."""
        with contextlib.suppress(OSError), self._hosts_file.open("a", encoding="utf-8") as file:
            file.write(to_json({"time": round(time.time(), 1)} | row) + "\n")

    def write_games(self, games: Sequence[dict[str, Any]]) -> None:
        """Write a line for each game; a disk that is full leaves no part of a line."""
        lines = "".join(to_json(game) + "\n" for game in games).encode()
        with contextlib.suppress(OSError), self._games_file.open("ab", buffering=0) as file:
            before = file.tell()
            if file.write(lines) < len(lines):
                file.truncate(before)

    def _description(self, name: str) -> str | None:
        """Return a metric's description the first time, which is the one that TensorBoard reads.

        Written with each value it would be most of the file.
        """
        if name in self._described:
            return None
        self._described.add(name)
        return format_description(name) or None

    def wants_histograms(self, seconds: float) -> bool:
        """Return whether histograms should be written, `seconds` after the start of the process.

        Each takes some tenths of a second, so their number grows slowly: the first are due after
        20 s, and the next ones after a tenth of the time so far, but at least a minute (98 in a
        month).
        """
        if seconds < self._next_histograms:
            return False
        self._next_histograms = max(seconds * 1.1, seconds + 60)
        return True

    def write_histograms(self, frames: float, named: dict[str, np.ndarray]) -> None:
        """Write distributions of values for TensorBoard, in 30 buckets each."""
        try:
            with self._writing_events(frames):
                for name, values in named.items():
                    tf.summary.write(name, _histogram(values), metadata=_HISTOGRAM)
        except _UNWRITABLE as error:
            reason = saved_variables.why_unwritable(error)
            self._say(f"histograms could not be written ({reason}); training continues")

    @contextlib.contextmanager
    def _writing_events(self, frames: float) -> Iterator[None]:
        """Write what the body records to TensorBoard's file, or raise one of `_UNWRITABLE`.

        The file may then end in half a record, after which TensorBoard reads nothing: the next
        events begin another file.
        """
        if self._events is None:
            self._events = tf.summary.create_file_writer(str(self._events_folder))
        events = self._events  # another thread may have the run move to another folder
        try:
            with events.as_default(step=np.int64(frames)):
                yield
            events.flush()
        except _UNWRITABLE:
            self._events = None
            raise


def _histogram(values: np.ndarray) -> np.ndarray:
    """Return a histogram in TensorBoard's format: float64 [K, 3], (left edge, right edge, count).

    `tf.summary.histogram` would count by a matrix of [values, K]: 3 CPU seconds and 400 MB for a
    network of 1.7 million weights.
    """
    # In float64, since there is no room for buckets between float32 values that hardly differ.
    counts, edges = np.histogram(values[np.isfinite(values)].astype(np.float64), _BUCKETS)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)
