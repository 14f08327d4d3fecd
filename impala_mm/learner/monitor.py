"""The work of a learner's main thread while another thread trains.

It exchanges status reports with the other learners once a second (`learner_reports`) and ends the
run at a limit. Rank 0 alone keeps the records: rows of metrics, progress lines, checkpoints.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import leaf_names
from impala_mm.distributed.consistency import VariablesDiffer
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.learner import resume
from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.learner.first_unroll import FirstUnroll, NoActorsLeft
from impala_mm.learner.learner import GradientNotFinite, Learner, NothingCompiled, between_updates
from impala_mm.learner.learner_reports import (
    EndlessUpdate,
    LearnerReport,
    ReportExchange,
    unfinished_update,
)
from impala_mm.learner.limits import RunLimits
from impala_mm.records.bottleneck import progress_line
from impala_mm.records.checkpoint import Damaged, Mismatch, Missing
from impala_mm.records.eta import EtaEstimator
from impala_mm.records.hooks import EventHook, StallDetector
from impala_mm.records.metrics import Meter, MetricsAggregator
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.verdict import VerdictWriter
from impala_mm.runtime import heartbeat, provenance
from impala_mm.runtime.idle_cores import IdleCores
from impala_mm.runtime.log import Say
from impala_mm.transport.server import Server

_ROW_SECONDS = 2.0  # seconds between rows of metrics
# Seconds between progress lines, the first of which is printed with the first update.
_LINE_SECONDS = 5.0
_STALL_SECONDS = 60.0  # seconds without an update before a stall is reported
# Seconds without reports of the other learners after which this one sends no heartbeat either.
_REPORT_SILENCE_SECONDS = 20.0
_END_SECONDS = 10.0  # seconds that learners wait for each other at the end
# Failures that all learners have at the same step.
_COMMON_FAILURES = (GradientNotFinite, VariablesDiffer, NothingCompiled)


class Records(NamedTuple):
    """The records that rank 0 writes; the other learners write none."""

    metrics_writer: MetricsWriter
    checkpointing: Checkpointing
    event_hook: EventHook


class LearnerLost(Exception):
    """Another learner has failed or cannot be reached; the message says what is known."""


class LearnerMonitor:
    """The reports, the records and the end of one learner's training."""

    def __init__(
        self,
        config: Config,
        group: LearnerGroup,
        algorithm: Algorithm,
        learner: Learner,
        server: Server,
        levels: dict[str, EnvironmentSpec],
        limits: RunLimits,
        records: Records | None,
        say: Say,
        note: Callable[[], str] = str,
    ):
        """Watch a learner; rank 0 prints what `note` returns after the first update."""
        self._config, self._group, self._algorithm = config, group, algorithm
        self._learner, self._server, self._limits = learner, server, limits
        self._records, self._say, self._note = records, say, note
        self._aggregator = MetricsAggregator(
            {name: spec.scores for name, spec in levels.items()}, group.size
        )
        self._eta_estimator = EtaEstimator(limits.frames, limits.seconds)
        self._eta: float | None = None  # seconds until a limit, once they can be estimated
        self._verdicts = VerdictWriter()
        self._reports: list[LearnerReport] = []  # the newest report of each learner
        self._endless_update = EndlessUpdate()
        self._endless = ""  # why the update that is being made will never end
        self._wait_share = 0.0  # share of its time that this learner waits for unrolls
        self._waited, self._timed = 0.0, 0.0  # the meter's seconds at the last report
        self._heartbeat, self._cores = heartbeat.of_learner(), IdleCores()
        self._updates_at_beat: int | None = None
        self._reported_at = math.inf  # time.monotonic()
        self.seconds = 0.0  # seconds of training, including those before a resume
        self._counted_seconds = 0.0  # those since the first unroll, which --max_seconds limits
        has_source = registry.optional(algorithm, "source") is not None
        self._first_unroll = FirstUnroll(provenance.num_actors(), has_source)
        self._no_actors_left = ""  # why no unroll can come any more
        self.finished = ""  # why a resumed run has nothing left to do

    def resume(self) -> None:
        """Load rank 0's newest checkpoint, if there is one, on all learners.

        Raises Mismatch if it belongs to a different network or level, or if no checkpoint is
        intact.
        """
        about, mismatch = None, ""
        if self._records:
            try:
                about = self._records.checkpointing.restore()
            except (Damaged, Mismatch, Missing) as error:
                mismatch = str(error)
        about, mismatch = self._group.gather((about, mismatch), "resume")[0]
        if mismatch:
            raise Mismatch(mismatch)
        variables = self._algorithm.variables
        self._group.broadcast([*variables.trained, *variables.carried])
        learner = self._learner
        if learner.own_state and about:
            learner.own_state.restore(about)
        if about:
            learner.updates, learner.steps = about.updates, about.steps
            self.seconds, self._counted_seconds = about.seconds, about.limited_seconds
            self.finished = resume.why_finished(about, self._limits)

    @property
    def saved(self) -> bool:
        """Whether the last checkpoint could be written; True for a learner that writes none."""
        return not self._records or self._records.checkpointing.saved

    def run(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Watch until training ends; return the last row of metrics.

        `meanwhile` is called several times a second. Raises the exception that ended this learner's
        training, or LearnerLost if another learner has failed.
        """
        learner = self._learner
        begin, before = time.monotonic(), self.seconds
        received_at, counted_before = math.inf, self._counted_seconds
        if self._records:
            settings = dataclasses.asdict(self._config) | {"num_learners": self._group.size}
            self._records.metrics_writer.write_settings(settings, learner.frames)
        self._aggregator.start(learner.frames, learner.steps, learner.updates)
        exchange = ReportExchange(self._group, self._report, self._receive_reports)
        if self._records:
            checkpointing = self._records.checkpointing
            learner.take_snapshot = functools.partial(checkpointing.take_snapshot, learner)
            learner.kept_updates = checkpointing.newest_updates
        learner.start_training(self._mean_return)
        self._reported_at = time.monotonic()
        exchange.start()
        timers = _Timers(self._config.save_checkpoint_secs, learner.updates)
        while learner.is_alive() and not exchange.failure and not self._why_lost():
            learner.join(0.1)
            meanwhile()
            self._send_heartbeat()
            self.seconds = before + time.monotonic() - begin
            if self._has_received:
                received_at = min(received_at, time.monotonic())
                self._counted_seconds = counted_before + time.monotonic() - received_at
            elif why := self._first_unroll.why_none_comes(self._num_actors(), self._gave_up()):
                self._no_actors_left = why
                learner.stop(why)
            if self._counted_seconds >= self._limits.seconds:
                learner.stop(f"reached --max_seconds={self._limits.seconds:g}")
            for actor in self._server.forget_silent(60):
                self._say(
                    f"nothing was received from actor {actor} for 60 s: it counts as gone until "
                    f"its next unroll"
                )
            if self._records:
                self._keep_records(self._records, timers)
        lost = self._wait_for_all_to_end(exchange)
        self.seconds = before + time.monotonic() - begin
        row = self._write_row(self._records.metrics_writer) if self._records else {}
        if self._records and learner.failure is None and not learner.is_alive():
            self._save(self._records.checkpointing, last=not self._no_actors_left, ended=True)
        self._server.close()
        if lost:
            raise LearnerLost(lost)
        if learner.failure:
            raise learner.failure
        reasons = [self._no_actors_left, *(report.no_actors_left for report in self._reports)]
        if why := next(filter(None, reasons), ""):
            raise NoActorsLeft(why)
        return row

    def _wait_for_all_to_end(self, exchange: ReportExchange) -> str:
        """Wait until all learners have ended; return why another one failed, or an empty string."""
        if self._endless:
            return self._endless
        learner = self._learner
        # If another learner failed within a step, this one may wait in the all-reduce for ever.
        learner.join(1.0 if self._other_learners_failure() or exchange.failure else _END_SECONDS)
        failed_here = learner.failure and not isinstance(learner.failure, _COMMON_FAILURES)
        together = exchange.finish(
            2.0 if failed_here or self._other_learners_failure() else _END_SECONDS
        )
        if failed := self._other_learners_failure():
            return failed
        if learner.failure and "horovod" not in str(learner.failure).lower():
            return ""  # `run` raises it
        return "" if together and not learner.failure else "another learner is unreachable"

    @property
    def end_reason(self) -> str:
        """The reason why training ended, from the first learner that knows it."""
        reasons = [self._learner.end_reason, *(report.end_reason for report in self._reports)]
        return next(filter(None, reasons), "another learner stopped")

    # -- reports between learners

    def _mean_return(self) -> float:
        """Return rank 0's mean return, which no longer changes once it ends the run."""
        self._aggregator.merge(0, self._learner.meter.take_reading())
        mean_return = self._aggregator.mean_return()
        if mean_return >= self._limits.episode_return:
            self._aggregator.close()
        return mean_return

    def _report(self) -> LearnerReport:
        learner, meter = self._learner, self._learner.meter
        done = not learner.is_alive()  # asked before the reading, so that the last one is complete
        reading = meter.take_reading()
        if self._group.rank == 0:  # its own reading need not wait for the exchange
            self._aggregator.merge(0, reading)
            reading = Meter().take_reading()
        waited, timed = meter.waited, meter.timed
        if timed - self._timed > 0.2:
            # Averaged over some seconds, since one late step says little.
            share = (waited - self._waited) / (timed - self._timed)
            self._wait_share += 0.4 * (share - self._wait_share)
            self._waited, self._timed = waited, timed
        return LearnerReport(
            reading=reading,
            load=self._server.load(self._wait_share),
            actors_elsewhere=self._server.actors_on_other_hosts(),
            idle_cores=self._cores.idle(),
            dropped=self._server.dropped,
            numbered=self._server.numbers.used,
            round_progress=self._server.rounds.progress if self._server.rounds else (0, 0),
            padded=self._server.rounds.padded if self._server.rounds else 0,
            faults=self._server.environment_faults,
            has_received=self._server.has_received or learner.has_received,
            gave_up=self._server.failures.gave_up,
            no_actors_left=self._no_actors_left,
            end_reason=learner.end_reason,
            in_update=0 if learner.variables_complete else learner.updates + 1,
            longest_update=learner.longest_update,
            error=learner.end_reason if learner.failure else "",
            done=done,
        )

    def _receive_reports(self, reports: list[LearnerReport]) -> None:
        self._reports, self._reported_at = reports, time.monotonic()
        self._endless = self._endless_update.why_endless(reports)
        if self._config.learner_assignment == "balance":
            self._server.loads = [report.load for report in reports]
        for rank, report in enumerate(reports):
            numbers = self._server.numbers
            numbers.most = max(numbers.most, report.numbered)
            self._aggregator.merge(rank, report.reading)

    def _send_heartbeat(self) -> None:
        """Send a heartbeat to the supervisor, unless an update hangs or no reports arrive."""
        learner, before = self._learner, self._updates_at_beat
        self._updates_at_beat = learner.updates
        works = learner.updates != before or not learner.variables_lock.locked()
        if works and time.monotonic() - self._reported_at < _REPORT_SILENCE_SECONDS:
            self._heartbeat.frames = learner.frames
            self._heartbeat.beat()

    def _why_lost(self) -> str:
        """Return why training cannot continue although this learner has not failed, or ""."""
        return self._endless or self._other_learners_failure()

    def _other_learners_failure(self) -> str:
        """Return why another learner failed; empty if none did, or if all failed alike."""
        if isinstance(self._learner.failure, _COMMON_FAILURES):
            return ""
        for rank, report in enumerate(self._reports):
            if report.error and rank != self._group.rank:
                return f"learner {rank} failed: {report.error}"
        return ""

    @property
    def _has_received(self) -> bool:
        """Whether a learner has received a complete unroll, or a batch from its own source."""
        own = self._server.has_received or self._learner.has_received
        return own or any(report.has_received for report in self._reports)

    def _gave_up(self) -> dict[int, str]:
        """Return the actors of all learners that gave up, and why."""
        found: dict[int, str] = {}
        for report in self._reports:
            found |= report.gave_up
        return found | self._server.failures.gave_up

    def _num_actors(self) -> int:
        """Return the number of connected actors of all learners."""
        others = [r for rank, r in enumerate(self._reports) if rank != self._group.rank]
        return len(self._server.actors) + sum(r.load.actors for r in others)

    def _actor_counts(self) -> dict[str, float]:
        """Return the metrics of the actors of all learners: their number, and idle cores."""
        others = [r for rank, r in enumerate(self._reports) if rank != self._group.rank]
        idle = [report.idle_cores for report in self._reports]
        known = [cores for cores in idle if cores is not None]
        return {
            "actors": self._num_actors(),
            "actors_elsewhere": self._server.actors_on_other_hosts()
            + sum(r.actors_elsewhere for r in others),
        } | ({"idle_cores": max(known)} if len(known) == len(idle) > 0 else {})

    # -- rank 0's records

    def _keep_records(self, records: Records, timers: "_Timers") -> None:
        """Write the records that are due; called several times a second."""
        learner, now = self._learner, time.monotonic()
        first = timers.first_line_due and learner.updates > timers.updates
        if timers.row.due(now) or first:
            row = self._write_row(records.metrics_writer)
            if (timers.line.due(now) or first) and self._has_received:
                timers.first_line_due = timers.first_line_due and not first
                self._say(progress_line(row, self._eta))
                if first and (note := self._note()):
                    self._say(note)
        waits = not self._has_received
        if waits and self._first_unroll.is_line_due():
            self._say(self._describe_wait())
        if timers.stall.has_begun(learner.updates, now):
            if waits:  # the lines of the wait are printed anyway
                message = self._describe_wait()
            else:
                message = f"no update for {_STALL_SECONDS:g} s{unfinished_update(self._reports)}"
                self._say(message)
            records.event_hook.call("stall", message)
        if learner.own_state:
            self._write_snapshot(records.checkpointing)
        if timers.save.due(now) and not self._save(records.checkpointing):
            timers.save.retry()
        if learner.actions is not None:
            self._write_histograms(records.metrics_writer, now - timers.began)

    def _save(self, checkpointing: Checkpointing, last: bool = False, ended: bool = False) -> bool:
        """Save a checkpoint, see `Checkpointing.save`; `ended`: no further update will be made.

        If learners have states of their own, all of them save after a step; when training ends,
        they have done so.
        """
        if not self._learner.own_state:
            mean_return, counted = self._aggregator.mean_return(), self._counted_seconds
            return checkpointing.save(self._learner, self.seconds, mean_return, last, counted)
        if ended:
            self._write_snapshot(checkpointing)
        else:
            self._learner.request_save()
        return True

    def _write_snapshot(self, checkpointing: Checkpointing) -> None:
        """Write the snapshot that was taken when all learners saved their own states, if any."""
        checkpointing.write_snapshot(
            self.seconds, self._aggregator.mean_return(), self._counted_seconds
        )

    def _describe_wait(self) -> str:
        return self._first_unroll.describe(self._num_actors(), len(self._gave_up()))

    def _write_row(self, metrics_writer: MetricsWriter) -> dict[str, Any]:
        """Write a row of metrics and return it."""
        learner = self._learner
        # The counts are read first, so that the meter has measured these steps at least.
        frames, steps, updates = learner.frames, learner.steps, learner.updates
        self._aggregator.merge(0, learner.meter.take_reading())
        row = {
            "frames": frames,
            "steps": steps,
            "updates": updates,
            "seconds": round(self.seconds, 3),
            "unrolls_dropped": sum(report.dropped for report in self._reports),
            "environment_faults": sum(report.faults for report in self._reports),
            **self._aggregator.row(frames, steps, updates),
        }
        if self._server.rounds:
            row["unrolls_padded"] = sum(report.padded for report in self._reports)
        if self._config.check_sync_every and self._group.size > 1:
            row |= {"sync_checks": learner.sync_checks, "sync_repairs": learner.sync_repairs}
        row |= self._actor_counts()
        alone = not row["actors"] and learner.has_received and not self._server.has_received
        progress = [report.round_progress for report in self._reports]
        row["verdict"] = self._verdicts.update(
            row, row["actors"], without_actors=alone, round_progress=progress
        )
        self._eta = self._eta_estimator.update(row, self._counted_seconds)
        metrics_writer.write(row)
        return row

    def _write_histograms(self, metrics_writer: MetricsWriter, seconds: float) -> None:
        """Write histograms of the trained variables and the last batch's actions, if it is time."""
        if not metrics_writer.wants_histograms(seconds):
            return
        with between_updates(self._learner) as paused:
            if not paused:
                return
            trained = self._algorithm.variables.trained
            named = {f"variables/{variable.name}": variable.numpy() for variable in trained}
        actions = self._learner.actions
        names = leaf_names(actions, "actions", "/")
        named |= {n: np.asarray(a) for n, a in zip(names, tf.nest.flatten(actions), strict=True)}
        metrics_writer.write_histograms(self._learner.frames, named)


class _Interval:
    """A timer that is due at regular intervals."""

    def __init__(self, seconds: float):
        self._seconds, self._last = seconds, time.monotonic()

    def due(self, now: float) -> bool:
        """Return whether the interval has passed; if so, start the next one."""
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True

    def retry(self) -> None:
        """Make the timer due at once, because the work could not be done."""
        self._last = -math.inf


class _Timers:
    """The timers of rank 0's records."""

    def __init__(self, save_seconds: float, updates: int):
        self.began, self.updates = time.monotonic(), updates
        self.first_line_due = True  # until the first update has been printed
        self.row, self.line = _Interval(_ROW_SECONDS), _Interval(_LINE_SECONDS)
        self.save = _Interval(save_seconds)
        self.stall = StallDetector(_STALL_SECONDS)
