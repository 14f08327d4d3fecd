"""Tests of a run's checkpoints while it trains, each checkpoint once.

`jobs.evaluator` calls `test_newest` every few seconds. The learner may delete a checkpoint at any
time, and a checkpoint may be damaged: such ones are logged and skipped.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.environments.types import OPTION_FLAGS, Environments
from impala_mm.evaluation import games, results
from impala_mm.evaluation.games import KeepPlaying, Viewer
from impala_mm.evaluation.results import Evaluation
from impala_mm.evaluation.video_writer import VideoFailed
from impala_mm.policy.core import PolicyCore
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo, Damaged, Mismatch
from impala_mm.records.run_contents import read_records
from impala_mm.runtime.log import Say


class Film(NamedTuple):
    """The video of a level's first game, and what writes it."""

    path: Path
    viewers: Callable[[Environments], Sequence[Viewer]] | None


class CheckpointTester:
    """The tester of one run; after a restart it reads evaluations.jsonl for what it has tested."""

    def __init__(
        self,
        logdir: Path,
        choose: Callable[[CheckpointInfo], list[str]],
        changes: dict[str, Any],
        meanwhile: KeepPlaying,
        say: Say,
        film: Callable[[PolicyCore, str], Film] | None = None,
        **how: Any,
    ):
        """Take a function that returns a checkpoint's levels, and arguments.

        `changes` are those of `PolicyCore`, `how` those of `evaluate_level`. `film` returns the
        video of a policy's game on a level.
        """
        self._film = film
        self._logdir, self._choose, self._changes = logdir, choose, changes
        self._levels: list[str] = []
        self._how, self._meanwhile, self._say = how, meanwhile, say
        self._policy: PolicyCore | None = None
        self._events: Any = None
        self._bad: set[tuple[str, int | None]] = set()  # fingerprints of unusable checkpoints
        # (level, updates) that this evaluator, or one before it, has tested.
        self._tested = {
            (row.get("level"), row.get("updates"))
            for row in read_records(results.path_of(logdir))
            if row.get("by") == "evaluator" and row.get("deterministic") == how["deterministic"]
        }
        self._played = Path()  # the last checkpoint of which games were begun
        self.newest: CheckpointInfo | None = None  # the last checkpoint that was tested
        self.frames = 0.0  # environment frames played so far

    def test_newest(self) -> bool:
        """Test the newest intact checkpoint unless it was tested before; return whether it was."""
        for path in reversed(checkpoint.of_run(self._logdir)):
            mark = _fingerprint(path)
            if mark in self._bad:
                continue
            try:
                if not self._due(path):
                    return False
                return self._test(path, checkpoint.read_intact(path))
            except (Damaged, Mismatch) as error:
                if mark == _fingerprint(path):  # else it was deleted or rewritten in the meantime
                    self._bad.add(mark)
                    self._say(f"{error}; it is skipped")
        return False

    def plays_newest(self) -> bool:
        """Return whether no checkpoint is newer than the one of which games were last begun."""
        return checkpoint.all_in(self._played.parent)[-1:] == [self._played]

    def _due(self, path: Path) -> bool:
        """Return whether there are levels that were not played with this checkpoint."""
        return not self._levels or any(
            (level, int(path.name)) not in self._tested for level in self._levels
        )

    def _test(self, path: Path, about: CheckpointInfo) -> bool:
        """Play all levels that are missing for a checkpoint; return whether any was played."""
        if self._policy is None or _differ(self._policy.about, about):
            self._levels = self._choose(about)
            self._policy = PolicyCore(path, about, self._levels[0], **self._changes)
        else:
            self._policy.load(path, about)
        self._played, tested = path, False
        for level in self._levels:
            if (level, about.updates) in self._tested:
                continue
            tested = True
            film = self._film(self._policy, level) if self._film else None
            try:
                result = self._play(self._policy, level, film)
            except VideoFailed as error:
                self._say(f"--video_dir: {error}; the tests go on without videos")
                self._film = film = None
                result = self._play(self._policy, level, None)
            self.frames += sum(result.lengths) * self._policy.spec.action_repeats
            if len(result.returns) < self._how["num_episodes"]:
                return False
            self._record(result, film.path if film else None)
        self.newest = about
        return tested

    def _play(self, policy: PolicyCore, level: str, film: Film | None) -> Evaluation:
        viewers = film.viewers if film else None
        return games.evaluate_level(
            policy, level, meanwhile=self._meanwhile, say=self._say, viewers=viewers, **self._how
        )

    def _record(self, result: Evaluation, video: Path | None) -> None:
        """Write an evaluation to evaluations.jsonl and TensorBoard, and log it."""
        self._tested.add((result.level, result.updates))
        row = results.make_row(result, "evaluator", self._logdir, video)
        try:
            results.append_row(self._logdir, row)
            self._draw(result, row)
        except (OSError, tf.errors.OpError) as error:
            self._say(f"an evaluation could not be written ({error})")
        deviation = results.number(row.get("deviation", float("nan")))
        frames, updates = f"{result.frames:,.0f} frames", f"{result.updates:,} updates"
        self._say(
            f"{result.level}: mean return {result.mean:.2f} (standard deviation {deviation}) of "
            f"{len(result.returns)} games at {frames if result.frames else updates}"
        )

    def _draw(self, result: Evaluation, row: dict[str, Any]) -> None:
        """Write an evaluation for TensorBoard, at the policy's frames, or its updates without."""
        if self._events is None:
            folder = self._logdir / "events-evaluation"
            self._events = tf.summary.create_file_writer(str(folder))
        suffix = f"/{result.level}" if len(self._levels) > 1 else ""
        named = {"return": row["mean"], "length": row["mean_length"]}
        named |= {name: row[name] for name in ("deviation", "normalised_score") if name in row}
        step = np.int64(result.frames or result.updates)  # see metrics_writer
        with self._events.as_default(step=step):
            for name, value in named.items():
                tf.summary.scalar(f"evaluation/{name}{suffix}", np.float32(value))
        self._events.flush()


def _differ(before: CheckpointInfo, about: CheckpointInfo) -> bool:
    """Return whether the run was resumed with another environment between two checkpoints."""
    return any(before.settings.get(name) != about.settings.get(name) for name in OPTION_FLAGS)


def _fingerprint(path: Path) -> tuple[str, int | None]:
    """Return (name, time of the last change), which differs once it is rewritten or deleted."""
    try:
        return path.name, path.stat().st_mtime_ns
    except OSError:
        return path.name, None
