"""What a learner measures: rows of metrics.jsonl, TensorBoard's scalars, a line in the terminal.

The training thread adds to a Meter; the main thread takes a row out of it every few seconds.
"""

import json
import math
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

_GAMES = 100  # over which returns are averaged
_BUCKETS = 30  # of a histogram


class Meter:
    """Sums since the last row, and the last games."""

    def __init__(self, scores: dict[str, tuple[float, float] | None]):
        """`scores`: of each level, the mean returns of random play and of a human, if known."""
        self._scores = scores
        self._lock = threading.Lock()
        self._returns = {level: deque[float](maxlen=_GAMES) for level in scores}  # raw
        self.games: deque[tuple[float, float]] = deque(maxlen=_GAMES)  # (raw return, steps)
        self._shaped: deque[float] = deque(maxlen=_GAMES)
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._times = {"wait": 0.0, "train": 0.0, "rest": 0.0}
        self._under_way = False  # whether an update was made
        self._from = (time.monotonic(), 0.0, 0.0)  # of the row before: when, frames, steps

    def add(self, metrics: dict[str, float]) -> None:
        """Values to be averaged in the next row."""
        with self._lock:
            for name, value in metrics.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
                self._counts[name] = self._counts.get(name, 0) + 1

    def add_times(self, **seconds: float) -> None:
        """What the training thread did with its time: wait, train, rest.

        All up to the first update's end is the start and tells nothing of what binds: actors were
        still on their way, and the update was compiled. It is forgotten then.
        """
        with self._lock:
            if not self._under_way and "train" in seconds:
                self._under_way = True
                self._times = dict.fromkeys(self._times, 0.0)
                return
            for name, value in seconds.items():
                self._times[name] += value

    def add_episodes(self, level: str, episodes: np.ndarray) -> None:
        """float32 [K, 3]: (1 for a whole game else 0, return, steps)."""
        with self._lock:
            for whole, episode_return, steps in episodes.tolist():
                if whole:
                    self.games.append((episode_return, steps))
                    self._returns[level].append(episode_return)
                else:
                    self._shaped.append(episode_return)

    def mean_return(self) -> float:
        """Mean raw return of the last games; NaN before there are as many as that takes."""
        with self._lock:
            full = len(self.games) == _GAMES
            return float(np.mean([r for r, _ in self.games])) if full else math.nan

    def row(self, frames: float, steps: float) -> dict[str, Any]:
        """What happened since the last call; a value that does not exist yet is absent."""
        with self._lock:
            now = time.monotonic()
            seconds = max(now - self._from[0], 1e-9)
            row: dict[str, Any] = {
                "frames_per_second": (frames - self._from[1]) / seconds,
                "steps_per_second": (steps - self._from[2]) / seconds,
            }
            if self.games:
                row["episode_return"] = float(np.mean([r for r, _ in self.games]))
                row["episode_length"] = float(np.mean([s for _, s in self.games]))
            if self._shaped:
                row["shaped_return"] = float(np.mean(self._shaped))
            row |= self._by_level()
            total = sum(self._times.values())
            if total > 0:
                row |= {f"{name}_share": value / total for name, value in self._times.items()}
            row |= {name: value / self._counts[name] for name, value in self._sums.items()}
            self._from = now, frames, steps
            self._sums, self._counts = {}, {}
            self._times = dict.fromkeys(self._times, 0.0)
            return {name: value for name, value in row.items() if math.isfinite(value)}

    def _by_level(self) -> dict[str, float]:
        """Each level's return where there are several; and by how much of a human's it is."""
        returns = {level: float(np.mean(r)) for level, r in self._returns.items() if r}
        row: dict[str, float] = {}
        if len(self._scores) > 1:
            row |= {f"episode_return/{level}": value for level, value in returns.items()}
        normalised = {}
        for level, value in returns.items():
            known = self._scores[level]
            if known:
                random, human = known
                normalised[level] = (value - random) / (human - random)
        if len(normalised) > 1:
            row |= {f"human_normalised/{level}": value for level, value in normalised.items()}
        if normalised:  # of several, the median, as the papers have it
            row["human_normalised"] = float(np.median(list(normalised.values())))
        return row

    def start(self, frames: float, steps: float) -> None:
        """Rates are counted from here."""
        self._from = time.monotonic(), frames, steps


class Log:
    """metrics.jsonl and TensorBoard events of one run; both are appended to, never cut."""

    def __init__(self, logdir: Path):
        self._file = (logdir / "metrics.jsonl").open("a", encoding="utf-8")
        self._events = tf.summary.create_file_writer(str(logdir / "events"))

    def write(self, row: dict[str, Any]) -> None:
        """One row. A full disk costs rows, not the run: it is raised to who can say so."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        with self._events.as_default(step=int(row["frames"])):
            for name, value in row.items():
                if name != "frames":
                    tf.summary.scalar(name, value)
        self._events.flush()

    def histograms(self, frames: float, named: dict[str, np.ndarray]) -> None:
        """Distributions of values, for TensorBoard; 30 numbers each."""
        with self._events.as_default(step=int(frames)):
            for name, values in named.items():
                tf.summary.histogram(name, values, buckets=_BUCKETS)
        self._events.flush()


class Thinning:
    """When to do something that must stay bounded over a run of any length.

    First after 20 s, then each time that the run is longer by a tenth: 130 times in a month.
    """

    def __init__(self) -> None:
        self._next = 20.0

    def due(self, seconds: float) -> bool:
        """Whether it is time again, `seconds` after the start."""
        if seconds < self._next:
            return False
        self._next = seconds * 1.1
        return True


def verdict(row: dict[str, Any], actors: int) -> str:
    """What binds, in words: the share of time that the learner waits decides."""
    if not actors:
        return "no actor is here"
    wait, moves = row.get("wait_share"), row["frames_per_second"] > 0
    if wait is None:
        return (
            "too early to say what binds"
            if moves
            else "an update is running (the first is compiled, too)"
        )
    if wait > 0.1 and not moves:
        return "waits for unrolls, and none came: see what the actors say, or add some"
    if wait > 0.1:
        return f"waits for unrolls {wait:.0%} of the time: add actors"
    if row.get("queue_fill", 0.0) > 0.5:
        return f"the learner binds: it trains {row['train_share']:.0%} of the time, actors wait"
    return "learner and actors are balanced"


def line(row: dict[str, Any], total: float, actors: int) -> str:
    """The progress line."""
    parts = [f"{row['frames']:,.0f} frames", f"{row['frames_per_second']:,.0f}/s"]
    if "episode_return" in row:
        parts.append(f"return {row['episode_return']:.2f}")
    if "policy_lag" in row:
        parts.append(f"lag {row['policy_lag']:.1f}")
    if row["frames_per_second"] > 0:
        eta = (total - row["frames"]) / row["frames_per_second"]
        parts.append(f"at most {_duration(eta)} to go")
    return " | ".join([*parts, verdict(row, actors)])


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
