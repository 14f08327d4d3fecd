"""The work of a learner's main thread while another thread trains.

It exchanges status reports with the other learners once a second (`learner_reports`) and ends the
run at a limit. Rank 0 alone keeps the records: rows of metrics, progress lines, checkpoints.
"""

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config.errors import BadCheckpoint
from impala_mm.config.settings import Config
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.learner import resume
from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.learner.first_unroll import FirstUnroll, NoUnrollComes
from impala_mm.learner.learner import Learner
from impala_mm.learner.learner_reports import (
    FIRST_UPDATE_SECONDS,
    REPORT_SILENCE_SECONDS,
    ReportExchange,
    unfinished_update,
)
from impala_mm.learner.limits import RunLimits
from impala_mm.learner.own_state import reload_source
from impala_mm.learner.row_writer import Divergence, RowWriter
from impala_mm.learner.run_status import COMMON_FAILURES, RunStatus
from impala_mm.learner.timers import STALL_SECONDS, Timers
from impala_mm.learner.train_step import VariablesNotFinite, describe_not_finite
from impala_mm.records.bottleneck import describe_filling, offline_line, progress_line
from impala_mm.records.checkpoint import Mismatch
from impala_mm.records.metrics import MetricsAggregator
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.outputs import RunOutputs
from impala_mm.records.run_folder import RunFolder, take_save_request
from impala_mm.runtime import heartbeat, lifecycle, starter
from impala_mm.runtime.log import Say
from impala_mm.transport.server import Server

# Seconds for which a learner whose first update is compiled sends heartbeats. A frontend that tries
# out a returned host expects to see within five minutes whether the learners hang.
_COMPILING_SECONDS = 180.0
_SILENT_SECONDS = 60  # seconds without anything from an actor, see `Server.forget_silent`
_LOOKS_FOR_FOLDER = 6  # half a second apart, until a folder counts as lost
_END_SECONDS = 10.0  # seconds that learners wait for each other at the end


class Records(NamedTuple):
    """The records that rank 0 writes; the other learners write none."""

    metrics_writer: MetricsWriter
    checkpointing: Checkpointing
    outputs: RunOutputs
    folder: RunFolder

    def move(self, path: Path) -> None:
        """Write to another folder from now on."""
        self.outputs.move(path)
        self.metrics_writer.move(path)
        self.checkpointing.move(path)


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
        silence: Callable[[float], str] = lambda reported_at: "",
    ):
        """Watch a learner; rank 0 prints what `note` returns after the first update.

        `silence` returns which learners have not answered since the last reports, see
        `SilentLearners.describe`.
        """
        self._config, self._group, self._algorithm = config, group, algorithm
        self._learner, self._server, self._limits = learner, server, limits
        self._records, self._say, self._note = records, say, note
        self._aggregator = MetricsAggregator(
            {name: spec.scores for name, spec in levels.items()}, group.size
        )
        self._status = status = RunStatus(config, group, learner, server, self._aggregator)
        self._silence = lambda: silence(status.reported_at)
        self._rows = RowWriter(
            *(config, group, learner, server, self._status, self._aggregator, limits),
            self._silence,
        )
        self._divergence = Divergence()
        self._heartbeat = heartbeat.of_learner()
        self._updates_at_beat: int | None = None
        # time.monotonic() until which a first update may run
        self._compiling_until = time.monotonic() + _COMPILING_SECONDS
        self.seconds = 0.0  # seconds of training, including those before a resume
        self._counted_seconds = 0.0  # those since the first unroll, which --max_seconds limits
        has_source = defines(algorithm.source)
        self._first_unroll = FirstUnroll(starter.num_actors(), has_source)
        self.finished = ""  # why a resumed run has nothing left to do
        self.folder_lost = ""  # what happened to the run's folder, if it is not there any more
        self._finding_folder = threading.Lock()

    def resume(self) -> bool:
        """Load rank 0's newest checkpoint on all learners; return whether the run has one.

        Raises Mismatch if it belongs to a different network or level, or if no checkpoint is
        intact, and VariablesNotFinite if its variables are not finite.
        """
        about, started_from, mismatch = None, None, ""
        if self._records:
            try:
                about = self._records.checkpointing.restore()
                started_from = self._records.checkpointing.started_from
            except BadCheckpoint as error:
                mismatch = str(error)
        found = self._group.gather((about, started_from, mismatch), "resume")[0]
        about, started_from, mismatch = found
        if mismatch:
            raise Mismatch(mismatch)
        variables = self._algorithm.variables
        self._group.broadcast([*variables.trained, *variables.carried])
        if bad := describe_not_finite(variables.watched):
            if about:
                path = f"{self._config.logdir}/checkpoints/{about.updates:010d}"
                raise VariablesNotFinite(
                    f"the checkpoint is not finite: {bad}: remove {path}, and the run resumes from "
                    f"the one before it"
                )
            raise VariablesNotFinite(f"the weights with which the run starts are not finite: {bad}")
        learner = self._learner
        if learner.own_state and about:
            learner.own_state.restore(about)
        if started_from and self._config.reload_replay:
            path, other = started_from
            reload_source(learner.own_state, path, other, self._group)
        if about:
            learner.updates, learner.steps = about.updates, about.steps
            learner.offline_updates = about.offline_updates
            self.seconds, self._counted_seconds = about.seconds, about.limited_seconds
            self.finished = resume.why_finished(about, self._limits)
        return about is not None

    def exit_code(self, signals: list[int]) -> int:
        """Return the exit code after these signals; 2 if the folder is lost: no restart helps."""
        if self.folder_lost:
            return 2
        if self.finished:
            return 0
        return 1 if self.why_unsaved else lifecycle.exit_code(signals)

    @property
    def why_unsaved(self) -> str:
        """Why the last checkpoint is not in the run's own folder, as far as this learner saves."""
        if self._records and not self._records.checkpointing.saved:
            return "the last checkpoint could not be written"
        return self.folder_lost

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
        exchange = ReportExchange(self._group, self._status.report, self._status.receive)
        if self._records:
            checkpointing = self._records.checkpointing
            learner.take_snapshot = functools.partial(checkpointing.take_snapshot, learner)
            learner.kept_updates = checkpointing.newest_updates
            learner.find_new_folder = functools.partial(self._find_new_folder, self._records)
        learner.start_training(self._mean_return)
        self._status.reported_at = time.monotonic()
        exchange.start()
        timers = Timers(self._config.save_checkpoint_secs, learner.updates)
        while learner.is_alive() and not exchange.failure and not self._status.why_lost():
            learner.join(0.1)
            meanwhile()
            self._send_heartbeat()
            self.seconds = before + time.monotonic() - begin
            if self._status.has_received:
                received_at = min(received_at, time.monotonic())
                self._counted_seconds = counted_before + time.monotonic() - received_at
            else:
                self._stop_if_no_unroll_comes()
            if self._counted_seconds >= self._limits.seconds:
                learner.stop(
                    f"reached --max_seconds={self._limits.seconds:g} after the first unroll"
                )
            for actor in self._server.forget_silent(_SILENT_SECONDS):
                self._say(
                    f"nothing was received from actor {actor} for "
                    f"{self._server.patience * _SILENT_SECONDS} s: it counts as gone until its "
                    f"next unroll"
                )
            if self._records:
                self._find_new_folder(self._records)
                self._keep_records(self._records, timers)
        lost = self._wait_for_all_to_end(exchange)
        self.seconds = before + time.monotonic() - begin
        if self._records:
            self._find_new_folder(self._records)
        row = self._write_row(self._records) if self._records else {}
        if self._records and learner.failure is None and not learner.is_alive():
            checkpointing = self._records.checkpointing
            self._save(checkpointing, ended=True)
            mean_return = self._aggregator.mean_return()
            checkpointing.describe_end(learner, self.seconds, mean_return, self._counted_seconds)
        self._server.close()
        self._raise_failure(lost, exchange.failure)
        reasons = [
            self._status.no_unroll_comes,
            *(report.no_unroll_comes for report in self._status.reports),
        ]
        if why := next(filter(None, reasons), ""):
            raise NoUnrollComes(why)
        return row

    def _raise_failure(self, lost: str, of_reports: BaseException | None) -> None:
        """Raise what has ended the training, if anything but its limits has."""
        if of_reports and not _is_of_horovod(of_reports):
            raise of_reports
        if lost:
            raise LearnerLost(lost)
        if self._learner.failure:
            raise self._learner.failure

    def _stop_if_no_unroll_comes(self) -> None:
        """Stop if actors gave up or send invalid unrolls; before they may play, none can have."""
        if self._learner.offline_left:
            self._first_unroll.restart()
        elif why := self._first_unroll.why_none_comes(
            self._status.num_actors(), self._status.gave_up(), self._status.mistakes()
        ):
            self._status.no_unroll_comes = why
            self._learner.stop(why)

    def _wait_for_all_to_end(self, exchange: ReportExchange) -> str:
        """Wait until all learners have ended; return why another one failed, or an empty string."""
        if self._status.endless:
            return self._status.endless
        learner = self._learner
        # If another learner failed within a step, this one may wait in the all-reduce for ever.
        learner.join(
            1.0 if self._status.other_learners_failure() or exchange.failure else _END_SECONDS
        )
        failed_here = learner.failure and not isinstance(learner.failure, COMMON_FAILURES)
        until = time.monotonic() + FIRST_UPDATE_SECONDS
        together = exchange.finish(
            2.0 if failed_here or self._status.other_learners_failure() else _END_SECONDS,
            lambda: time.monotonic() < until and self._may_be_saving(),
        )
        if failed := self._status.other_learners_failure():
            return failed
        if learner.failure and not _is_of_horovod(learner.failure):
            return ""  # `run` raises it
        return "" if together and not learner.failure else "another learner is unreachable"

    def _may_be_saving(self) -> bool:
        """Return whether nothing hangs or has failed, so that learners may still be saving."""
        self._send_heartbeat()
        learner, silent = self._learner, time.monotonic() - self._status.reported_at
        fails = learner.failure or self._status.other_learners_failure()
        return silent < _END_SECONDS and not fails and not learner.variables_lock.locked()

    def wait_for_all_to_save(self) -> None:
        """Wait until all learners get here: one that exits earlier could end rank 0."""
        self._heartbeat.beat_during(lambda: self._group.gather(None, "saved"))

    @property
    def end_reason(self) -> str:
        """The reason why training ended, from the first learner that knows it."""
        reasons = [
            self._learner.end_reason,
            *(report.end_reason for report in self._status.reports),
        ]
        return next(filter(None, reasons), "another learner stopped")

    # -- reports between learners

    def _mean_return(self) -> float:
        """Return rank 0's mean return, which no longer changes once it ends the run."""
        self._aggregator.collect(0, self._learner.meter)
        mean_return = self._aggregator.mean_return()
        if mean_return >= self._limits.episode_return:
            self._aggregator.close()
        return mean_return

    def _send_heartbeat(self) -> None:
        """Send a heartbeat to the supervisor, unless an update hangs or no reports arrive.

        A first update may take some minutes.
        """
        learner, before = self._learner, self._updates_at_beat
        self._updates_at_beat = learner.updates
        now = time.monotonic()
        if not learner.is_compiling:
            self._compiling_until = now + _COMPILING_SECONDS
        works = learner.updates != before or not learner.variables_lock.locked()
        works |= learner.is_compiling and now < self._compiling_until
        if works and time.monotonic() - self._status.reported_at < REPORT_SILENCE_SECONDS:
            self._heartbeat.frames = learner.frames
            self._heartbeat.beat()

    # -- rank 0's records

    def _keep_records(self, records: Records, timers: Timers) -> None:
        """Write the records that are due; called several times a second."""
        learner, now = self._learner, time.monotonic()
        first = timers.first_line_due and learner.updates > timers.updates
        if timers.row.due(now) or first:
            row = self._write_row(records)
            offline = learner.offline_left
            if (timers.line.due(now) or first) and (offline or self._status.has_received):
                timers.first_line_due = timers.first_line_due and not first
                planned = learner.offline_planned
                line = offline_line(row, offline, planned) if offline else ""
                self._say(line or progress_line(row, self._rows.eta))
                if first and (note := self._note()):
                    self._say(note)
        waits = not (learner.offline_left or self._status.has_received)
        if waits and self._first_unroll.is_line_due():
            self._say(self._describe_wait())
        if timers.hosts.due(now):
            self._rows.write_hosts(records.metrics_writer, self.seconds)
        if timers.stall.has_begun(learner.updates, now):
            if waits:  # the lines of the wait are printed anyway
                message = self._describe_wait()
            else:
                why = self._describe_stall()
                message = f"no update for {STALL_SECONDS:g} s{why}"
                self._say(message)
            records.outputs.event_hook.call("stall", message)
        if learner.own_state:
            self._write_snapshot(records.checkpointing)
        is_asked = learner.updates and take_save_request(records.folder.path)
        if (timers.save.due(now) or is_asked) and not self._save(records.checkpointing):
            timers.save.retry()
        if learner.actions is not None:
            trained = self._algorithm.variables.trained
            self._rows.write_histograms(records.metrics_writer, trained, now - timers.began)

    def _find_new_folder(self, records: Records) -> str:
        """End the run in another folder if its own one was removed, moved or replaced.

        Called before anything is written, also when all learners save their own states. Return the
        new folder, or "" while the run has its own one.
        """
        with self._finding_folder:
            if not self.folder_lost and (why := _why_lost(records.folder)):
                records.move(records.folder.begin_beside())
                self.folder_lost = f"{why} during the run"
                self._say(
                    f"error: {self.folder_lost}: the run ends, and saves its last state to "
                    f"{records.folder.path}"
                )
                self._learner.stop(self.folder_lost)
            return str(records.folder.path) if self.folder_lost else ""

    def _write_row(self, records: Records) -> dict[str, Any]:
        row = self._rows.write(records.metrics_writer, self.seconds, self._counted_seconds)
        for warning in self._divergence.describe(row, self._learner.weight_size):
            self._say(warning)
        return row

    def _save(self, checkpointing: Checkpointing, ended: bool = False) -> bool:
        """Save a checkpoint, see `Checkpointing.save`; `ended`: no further update will be made.

        If learners have states of their own, all of them save after a step; when training ends,
        they have done so.
        """
        if not self._learner.own_state:
            mean_return, counted = self._aggregator.mean_return(), self._counted_seconds
            numbers = self._learner, self.seconds, mean_return, counted
            return checkpointing.save(*numbers, during=self._heartbeat.beat_during)
        if ended:
            self._write_snapshot(checkpointing)
        else:
            self._learner.request_save()
        return True

    def _write_snapshot(self, checkpointing: Checkpointing) -> None:
        """Write the snapshot that was taken when all learners saved their own states, if any."""
        if checkpointing.has_snapshot:
            numbers = self.seconds, self._aggregator.mean_return(), self._counted_seconds
            self._heartbeat.beat_during(lambda: checkpointing.write_snapshot(*numbers))

    def _describe_stall(self) -> str:
        """Return why there is no update, as far as it is known, after a colon."""
        if silent := self._silence():
            return f": {silent}"
        filling = self._status.filling()
        if filling[1]:
            return f": {describe_filling(filling)}"
        seconds = time.monotonic() - self._status.reported_at
        return unfinished_update(self._status.reports, seconds)

    def _describe_wait(self) -> str:
        return self._first_unroll.describe(self._status.num_actors(), len(self._status.gave_up()))


def _is_of_horovod(failure: BaseException) -> bool:
    """Return whether an exception is how Horovod says that a learner cannot be reached."""
    kinds = tf.errors.OpError | RuntimeError
    return isinstance(failure, kinds) and "horovod" in f"{type(failure).__name__} {failure}".lower()


def _why_lost(folder: RunFolder) -> str:
    """Return `why_lost` of a folder, if it says the same for some seconds: a mount may return."""
    for _ in range(_LOOKS_FOR_FOLDER):
        why = folder.why_lost()
        if not why:
            return ""
        time.sleep(0.5)
    return why
