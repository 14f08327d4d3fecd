"""What a run leaves to read, written by rank 0: metrics.jsonl and TensorBoard's events.

With --track, wandb is handed each row, too (`wandb_tracking`).

A disk that takes nothing costs rows, not the run; it is said once, and again when it is over.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata

from impala_mm.records.wandb_tracking import WandbTracking
from impala_mm.runtime.log import Say

_BUCKETS = 30  # of a histogram
_HISTOGRAM = metadata.create_summary_metadata(display_name=None, description=None)


class MetricsWriter:
    """Of one run; everything is appended to, never cut."""

    def __init__(self, logdir: Path, say: Say, tracked: WandbTracking | None = None):
        self._file = (logdir / "metrics.jsonl").open("a", encoding="utf-8")
        self._events = tf.summary.create_file_writer(str(logdir / "events"))
        self._say, self._tracked = say, tracked
        self._writes = True  # whether the last row could be written
        self._next_histograms = 20.0  # seconds from the start

    def write(self, row: dict[str, Any]) -> None:
        """One row of metrics; its texts stand in metrics.jsonl alone."""
        numbers = {name: value for name, value in row.items() if not isinstance(value, str)}
        if self._tracked:
            self._tracked.write(numbers)
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
            # NumPy's: of each of Python's numbers TensorFlow keeps a tensor for ever, 0.8 kB.
            with self._events.as_default(step=np.int64(row["frames"])):
                for name, value in numbers.items():
                    if name != "frames":
                        tf.summary.scalar(name, np.float32(value))
            self._events.flush()
        except (OSError, tf.errors.OpError) as error:
            if self._writes:
                self._say(f"metrics cannot be written ({error}); training goes on")
            self._writes = False
        else:
            if not self._writes:
                self._say("metrics are written again")
            self._writes = True

    def wants_histograms(self, seconds: float) -> bool:
        """Whether it is time, `seconds` after the start: their number stays bounded.

        First after 20 s, then each time that the run is longer by a tenth, and by a minute: they
        take some tenths of a second. 98 times in a month.
        """
        if seconds < self._next_histograms:
            return False
        self._next_histograms = max(seconds * 1.1, seconds + 60)
        return True

    def write_histograms(self, frames: float, named: dict[str, np.ndarray]) -> None:
        """Distributions of values, for TensorBoard; 30 numbers each."""
        try:
            with self._events.as_default(step=np.int64(frames)):
                for name, values in named.items():
                    tf.summary.write(name, _histogram(values), metadata=_HISTOGRAM)
            self._events.flush()
        except (OSError, tf.errors.OpError) as error:
            self._say(f"histograms could not be written ({error}); training goes on")


def _histogram(values: np.ndarray) -> np.ndarray:
    """As TensorBoard reads it: float64 [K, 3] of (left edge, right edge, count).

    `tf.summary.histogram` would count by a matrix of [values, K]: 3 CPU seconds and 400 MB for a
    network of 1.7 million weights.
    """
    # In float64: between float32s that hardly differ there is no room for buckets.
    counts, edges = np.histogram(values[np.isfinite(values)].astype(np.float64), _BUCKETS)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)
