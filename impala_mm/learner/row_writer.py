"""The rows of metrics of all learners, progress lines and histograms; `monitor` calls it."""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data import variable_names
from impala_mm.data.trajectory import leaf_names
from impala_mm.learner.learner import between_updates
from impala_mm.learner.run_status import RunStatus
from impala_mm.learner.train_step import ADVICE
from impala_mm.records.bottleneck import (
    ENDED,
    UNKNOWN,
    VerdictWriter,
    describe_running_update,
    describe_silence,
    describe_turns,
    describe_without_actors,
    name_of,
    offline_line,
    progress_line,
)
from impala_mm.records.host_use import HostRows
from impala_mm.records.metrics import EtaEstimator
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.runtime.timing import Interval

_ROW_SECONDS = 2.0  # seconds between rows of metrics
_HOSTS_SECONDS = 10.0  # seconds between rows of what hosts use
# Seconds between progress lines, the first of which is printed with the first update.
_LINE_SECONDS = 5.0
_VERDICT_SECONDS = 60.0  # seconds between lines on a bottleneck that stays the same
_LARGEST_LOSS = 1e12  # per step: the square of an error of a million
_LARGEST_WEIGHTS = 100.0  # root of their mean square; networks that learn have 0.1 to 3
_SMALLEST_ENTROPY = 1e-10  # nats
_ROWS_WITHOUT_ENTROPY = 10
_WORSE = 1e6  # factor by which a loss or the weights must have grown to be named again


class Divergence:
    """Warnings that training has diverged, each given once.

    A loss per step has exploded above 1e12, and weights once their root mean square is above 100:
    after 120 updates of CartPole it is 0.15 with a learning rate of 0.0008, 0.4 with 0.03, 3 with
    0.3 and 3,000 with 1,000. A policy has collapsed if its entropy was below 1e-10 nats in ten rows
    in succession: with 0.03 it is above 1e-2, with 3 it is 0. A loss or weights are named again
    once they are a million times larger.
    """

    def __init__(self) -> None:
        self._limits: dict[str, float] = {}  # by name, that above which it is named again
        self._rows_without_entropy = 0

    def describe(self, row: Mapping[str, Any], weight_size: float) -> list[str]:
        """Return warnings about a row; `weight_size` is that of `StepResult` at this time."""
        sizes = {"root mean square of the weights": (weight_size, _LARGEST_WEIGHTS)}
        for name, value in row.items():
            per_step = name.replace("loss/", "loss_per_step/")
            if name.startswith("loss") and (per_step == name or per_step not in row):
                sizes[name] = abs(value), _LARGEST_LOSS
        warnings = []
        for name, (size, most) in sizes.items():
            if size > self._limits.get(name, most):
                self._limits[name] = size * _WORSE
                warnings.append(f"warning: {name} = {size:.1e}: training has diverged: {ADVICE}")
        entropy = row.get("loss_per_step/entropy", row.get("entropy"))
        if entropy is not None:
            collapsed = abs(entropy) < _SMALLEST_ENTROPY
            self._rows_without_entropy = self._rows_without_entropy + 1 if collapsed else 0
        if self._rows_without_entropy == _ROWS_WITHOUT_ENTROPY and "entropy" not in self._limits:
            self._limits["entropy"] = math.inf
            warnings.append(
                f"warning: the policy's entropy has been 0 for {_ROWS_WITHOUT_ENTROPY} rows of "
                f"metrics, so it explores nothing and learns nothing: lower --learning_rate, or "
                f"raise --entropy_cost"
            )
        return warnings


class RowWriter:
    """The rows of metrics of one run, and the lines and warnings that follow from them."""

    def __init__(
        self, status: RunStatus, metrics_writer: MetricsWriter, note: Callable[[], str] = str
    ):
        """Write rows; what `note` returns is printed after the first update's line."""
        self._status, self._metrics_writer, self._note = status, metrics_writer, note
        limits = status.learner.limits
        self._eta_estimator = EtaEstimator(limits.frames, limits.seconds)
        self._eta: float | None = None  # seconds until a limit, once they can be estimated
        self._verdicts, self._host_rows = VerdictWriter(), HostRows()
        self._verdict = ""  # of the last row with an update; it and the ETA hold until the next one
        self._said: tuple[str, bool] = ("", False)  # of the last line on the bottleneck
        self._divergence = Divergence()
        self._began, self._updates = time.monotonic(), self._status.learner.updates
        self._first_line_due = True  # until the first update has been printed
        self._row, self._line = Interval(_ROW_SECONDS), Interval(_LINE_SECONDS)
        self._hosts, self._again = Interval(_HOSTS_SECONDS), Interval(_VERDICT_SECONDS)

    def look(self, now: float) -> None:
        """Write the rows, lines and histograms that are due."""
        status, learner = self._status, self._status.learner
        first = self._first_line_due and learner.updates > self._updates
        if self._row.due(now) or first:
            row, offline = self.write(), learner.offline_left
            if (self._line.due(now) or first) and (offline or status.has_received):
                self._first_line_due = self._first_line_due and not first
                line = offline_line(row, offline, learner.offline_planned) if offline else ""
                status.say(line or progress_line(row, self._eta))
                self._say_verdict(row["verdict"], now)
                if first and (note := self._note()):
                    status.say(note)
        if self._hosts.due(now):
            self._write_hosts()
        if learner.actions is not None and self._metrics_writer.wants_histograms(now - self._began):
            self._write_histograms()

    def write(self, ended: str = "") -> dict[str, Any]:
        """Write a row now and return it; print what is wrong in it.

        `ended`: why the training has ended, in the last row.
        """
        status, learner, aggregator = self._status, self._status.learner, self._status.aggregator
        # The counts are read first, so that the meter has measured these steps at least.
        frames, steps, updates = learner.frames, learner.steps, learner.updates
        aggregator.collect(0, learner.meter)
        row = {
            "frames": frames,
            "steps": steps,
            "updates": updates,
            "seconds": round(status.seconds, 3),
            "unrolls_dropped": sum(report.dropped for report in status.reports),
            "environment_faults": sum(report.faults for report in status.reports),
            **aggregator.row(frames, steps, updates, learner.updated_at),
        }
        if status.server.rounds:
            row["unrolls_padded"] = sum(report.padded for report in status.reports)
        if status.config.check_sync_every and status.group.size > 1:
            row |= {"sync_checks": learner.sync_checks, "sync_repairs": learner.sync_repairs}
        row |= status.actor_counts()
        if learner.offline_updates and learner.offline_updates == updates:
            row["offline_updates"] = learner.offline_updates
        row["verdict"] = f"{ENDED}{ended}" if ended else self._judge(row)
        if not aggregator.throughput.is_between_updates:
            self._verdict = row["verdict"]
            self._eta = self._eta_estimator.update(row, status.seconds)
        self._metrics_writer.write(row)
        if games := aggregator.take_games():
            at = {"frames": frames, "seconds": row["seconds"]}
            self._metrics_writer.write_games([at | game for game in games])
        for warning in self._divergence.describe(row, learner.weight_size):
            status.say(warning)
        return row

    def _say_verdict(self, verdict: str, now: float) -> None:
        """Print what the bottleneck is if it is new, or was not said for a while."""
        if verdict != UNKNOWN and (name_of(verdict) != self._said or self._again.due(now)):
            self._said, self._again = name_of(verdict), Interval(_VERDICT_SECONDS)
            self._status.say(verdict)

    def _write_hosts(self) -> None:
        """Write a row of what the run uses on each host."""
        status = self._status
        reports = [report.hosts for report in status.reports]
        learners, actors = [hosts[0] for hosts in reports], [hosts[1:] for hosts in reports]
        parts = [*learners, *itertools.chain(*actors)]
        progress = {"frames": status.learner.frames, "seconds": round(status.seconds, 3)}
        self._metrics_writer.write_hosts(progress | self._host_rows.make(parts))

    def _judge(self, row: dict[str, Any]) -> str:
        """Return the verdict of a row."""
        status, learner = self._status, self._status.learner
        throughput = status.aggregator.throughput
        alone = not row["actors"] and learner.has_received and not status.server.has_received
        if silent := status.silence():
            return describe_silence(silent)
        if learner.offline_left:
            return describe_without_actors(row, offline=True)
        if row["actors"] or alone:
            if throughput.is_between_updates:
                return self._verdict
            if not (row["updates_per_second"] or learner.variables_complete):
                return describe_running_update(not throughput.has_updated)
        if status.config.deterministic_run and row["frames_per_second"]:
            return describe_turns(row)
        progress = [report.round_progress for report in status.reports]
        return self._verdicts.update(row, row["actors"], alone, progress, status.filling())

    def _write_histograms(self) -> None:
        """Write histograms of the trained variables and the last batch's actions."""
        learner = self._status.learner
        with between_updates(learner) as paused:
            if not paused:
                return
            trained = learner.algorithm.variables.trained
            named = {f"variables/{variable_names.of(v)}": v.numpy() for v in trained}
        actions = learner.actions
        names = leaf_names(actions, "actions", "/")
        named |= {n: np.asarray(a) for n, a in zip(names, tf.nest.flatten(actions), strict=True)}
        self._metrics_writer.write_histograms(learner.frames, named)
