"""The work of a learner's main thread while another thread trains.

It exchanges status reports with the other learners once a second (`learner_reports`), and watches
the learner (`watching`). Rank 0 alone keeps the records (`RecordKeeper`): rows of metrics and
progress lines (`row_writer`), checkpoints (`checkpointing`).
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from impala_mm.config.errors import BadCheckpoint
from impala_mm.learner import resume
from impala_mm.learner.checkpointing import Checkpointing, JointSaves
from impala_mm.learner.learner_reports import FIRST_UPDATE_SECONDS, ReportExchange
from impala_mm.learner.own_state import reload_source
from impala_mm.learner.row_writer import RowWriter
from impala_mm.learner.run_status import COMMON_FAILURES, RunStatus
from impala_mm.learner.train_step import VariablesNotFinite, describe_not_finite
from impala_mm.learner.watching import FirstUnroll, NoUnrollComes, StallReports, WorkBeat
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.outputs import RunOutputs
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import lifecycle, provenance

_END_SECONDS = 10.0  # seconds that learners wait for each other at the end
_SILENT_SECONDS = 60  # seconds without anything from an actor, see `Server.forget_silent`
_LOOKS_FOR_FOLDER = 6  # half a second apart, until a folder counts as lost


class LearnerLost(Exception):
    """Another learner has failed or cannot be reached; the message says what is known."""


class RecordKeeper:
    """The records that rank 0 alone writes; if the run's folder is lost, they go to another."""

    def __init__(
        self,
        status: RunStatus,
        metrics_writer: MetricsWriter,
        checkpointing: Checkpointing,
        outputs: RunOutputs,
        folder: RunFolder,
        note: Callable[[], str] = str,
    ):
        """Keep the records; what `note` returns is printed after the first update's line."""
        self._status, self._metrics_writer = status, metrics_writer
        self.checkpointing, self._outputs, self._folder = checkpointing, outputs, folder
        self._note = note
        self._looking = threading.Lock()
        self.lost = ""  # what happened to the run's folder, if it is not there any more

    @classmethod
    def make(
        cls,
        status: RunStatus,
        folder: RunFolder,
        outputs: RunOutputs,
        made_of: dict[str, Any],
        note: Callable[[], str],
    ) -> "RecordKeeper":
        """Return the keeper of a run's records in its folder; `made_of` is that of the agent."""
        config, variables = status.config, status.learner.algorithm.variables
        keep, most = config.keep_checkpoints, config.checkpoint_max_gb * 1e9
        checkpoints = Checkpoints(folder.path, variables, keep, most, status.say)
        settings, versions = dataclasses.asdict(config), provenance.versions()
        about = CheckpointInfo(status.group.size, settings, made_of, versions)
        checkpointing = Checkpointing(status, checkpoints, about, outputs.event_hook)
        writer = MetricsWriter(folder.path, status.say, outputs.tracked)
        return cls(status, writer, checkpointing, outputs, folder, note)

    def add_measured(self, measured: dict[str, float]) -> None:
        """Write the teachers' mean returns, which were measured before the first update."""
        learner, seconds = self._status.learner, round(self._status.seconds, 3)
        counts = {"frames": learner.frames, "steps": learner.steps, "updates": learner.updates}
        self._metrics_writer.write(counts | {"seconds": seconds} | measured)
        # A replay that was reloaded is in no checkpoint before the learners save their own states:
        # until then the run begins anew.
        if not (learner.updates or self._status.config.reload_replay):
            self.checkpointing.save_start()

    def begin(self, first_unroll: FirstUnroll) -> None:
        """Begin before the first update."""
        status = self._status
        settings = dataclasses.asdict(status.config) | {"num_learners": status.group.size}
        self._metrics_writer.write_settings(settings, status.learner.frames)
        self._first_unroll = first_unroll
        self._rows = RowWriter(status, self._metrics_writer, self._note)
        self._stalls = StallReports(status, first_unroll, self._outputs.event_hook)
        self.checkpointing.begin()

    def look(self, now: float) -> None:
        """Write what is due."""
        self.find_new_folder()  # before anything is written
        self._rows.look(now)
        self._first_unroll.say_due_line()
        self._stalls.look(now)
        self.checkpointing.look(now, self._folder.path)

    def end(self, reason: str) -> dict[str, Any]:
        """Write the last row, which says why the training has ended, and return it.

        The last state is saved, if the training did not fail.
        """
        learner = self._status.learner
        self.find_new_folder()
        row = self._rows.write(ended=reason)
        if learner.failure is None and not learner.is_alive():
            self.checkpointing.end()
        return row

    def find_new_folder(self) -> str:
        """Return the new folder, or "" while the run has its own one: not removed or replaced.

        It is also called when all learners save their own states, in the training thread.
        """
        folder = self._folder
        with self._looking:
            if not self.lost and (reason := _why_lost(folder)):
                path = folder.begin_beside()
                for writer in (self._outputs, self._metrics_writer, self.checkpointing):
                    writer.move(path)
                self.lost = f"{reason} during the run"
                self._status.say(
                    f"error: {self.lost}: the run ends, and saves its last state to {folder.path}"
                )
                self._status.learner.stop(self.lost)
            return str(folder.path) if self.lost else ""


def _why_lost(folder: RunFolder) -> str:
    """Return `why_lost` of a folder, if it says the same for some seconds: a mount may return."""
    for _ in range(_LOOKS_FOR_FOLDER):
        reason = folder.why_lost()
        if not reason:
            return ""
        time.sleep(0.5)
    return reason


class LearnerMonitor:
    """The start, the watch over, and the end of one learner's training."""

    def __init__(self, status: RunStatus, keeper: RecordKeeper | None):
        """Watch the learner of this status; rank 0 has a keeper."""
        self.status, self._learner, self._keeper = status, status.learner, keeper
        self.finished = ""  # why a resumed run has nothing left to do
        self._beat, self._first_unroll = WorkBeat(status), FirstUnroll(status)

    def resume(self) -> bool:
        """Load rank 0's newest checkpoint on all learners; return whether the run has one.

        Raises Mismatch if it belongs to a different network or level, or if no checkpoint is
        intact, and VariablesNotFinite if its variables are not finite.
        """
        learner, status = self._learner, self.status
        about, started_from, mismatch = None, None, ""
        if self._keeper:
            try:
                about = self._keeper.checkpointing.restore()
                started_from = self._keeper.checkpointing.started_from
            except BadCheckpoint as error:
                mismatch = str(error)
        restored = status.group.gather((about, started_from, mismatch), "resume")[0]
        about, started_from, mismatch = restored
        if mismatch:
            raise Mismatch(mismatch)
        variables = learner.algorithm.variables
        status.group.broadcast([*variables.trained, *variables.carried])
        if bad := describe_not_finite(variables.watched):
            if about:
                path = f"{status.config.logdir}/checkpoints/{about.updates:010d}"
                raise VariablesNotFinite(
                    f"the checkpoint is not finite: {bad}: remove {path}, and the run resumes from "
                    f"the one before it"
                )
            raise VariablesNotFinite(f"the weights with which the run starts are not finite: {bad}")
        if learner.own_state and about:
            learner.own_state.restore(about)
        if started_from and status.config.reload_replay:
            path, other = started_from
            reload_source(learner.own_state, path, other, status.group)
        if about:
            learner.updates, learner.steps = about.updates, about.steps
            learner.offline_updates = about.offline_updates
            status.seconds = about.seconds
            status.aggregator.ratings.restore(about.ratings)
            self.finished = resume.why_finished(about, learner.limits)
        return about is not None

    def exit_code(self, signals: list[int]) -> int:
        """Return the exit code after these signals; 2 if the folder is lost: no restart helps."""
        if self._keeper and self._keeper.lost:
            return 2
        if self.finished:
            return 0
        return 1 if self.why_unsaved else lifecycle.exit_code(signals)

    @property
    def why_unsaved(self) -> str:
        """Why the last checkpoint is not in the run's own folder, as far as this learner saves."""
        if not self._keeper:
            return ""
        saved = self._keeper.checkpointing.saved
        return self._keeper.lost if saved else "the last checkpoint could not be written"

    def run(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Watch until training ends; return the last row of metrics.

        `meanwhile` is called several times a second. Raises the exception that ended this learner's
        training, or LearnerLost if another learner has failed.
        """
        learner, status = self._learner, self.status
        exchange = ReportExchange(status.group, status.report, status.receive)
        self._begin()
        learner.prepare_training(status.mean_returns)
        learner.start()
        status.reported_at = time.monotonic()
        exchange.start()
        while learner.is_alive() and not exchange.failure and not status.why_lost():
            learner.join(0.1)
            meanwhile()
            self._look()
        lost = self._wait_for_all_to_end(exchange)
        return self._end(lost, exchange.failure)

    def run_here(self) -> dict[str, Any]:
        """Train in this thread; return the last row. The source of batches calls `look_alone`."""
        self._begin()
        self._learner.prepare_training(self.status.mean_returns)
        self._learner.run()
        return self._end()

    def look_alone(self) -> None:
        """Look after the learner between two updates, without a thread for reports."""
        self.status.receive([self.status.report()])
        if self._learner.has_received:
            self._look()

    def _begin(self) -> None:
        """Begin the records, before the first update."""
        learner = self._learner
        self.status.begin_time()
        self.status.aggregator.start(learner.frames, learner.steps, learner.updates)
        if self._keeper:
            self._keeper.begin(self._first_unroll)
        if learner.own_state:
            keeps = self._keeper.checkpointing if self._keeper else None
            find_new_folder = self._keeper.find_new_folder if self._keeper else str
            learner.save_own_state = JointSaves(learner, keeps, find_new_folder).save

    def _look(self) -> None:
        """Do what is to be done several times a second."""
        now, status = time.monotonic(), self.status
        self._beat.look(now)
        status.count_time(now)
        if status.seconds >= (most := self._learner.limits.seconds):
            self._learner.stop(f"reached --max_seconds={most:g} after the first unroll")
        self._first_unroll.look()
        status.server.forget_silent(_SILENT_SECONDS)
        if self._keeper:
            self._keeper.look(now)

    def _end(self, lost: str = "", of_reports: BaseException | None = None) -> dict[str, Any]:
        """End the records and the server; return the last row, or raise what ended the training.

        `lost` says why another learner failed, and `of_reports` is what ended their reports.
        """
        status = self.status
        row = self._keeper.end(lost or self.end_reason) if self._keeper else {}
        status.server.close()
        self._raise_failure(lost, of_reports)
        reasons = [status.no_unroll_comes, *(report.no_unroll_comes for report in status.reports)]
        if reason := next(filter(None, reasons), ""):
            raise NoUnrollComes(reason)
        return row

    def _raise_failure(self, lost: str, of_reports: BaseException | None) -> None:
        """Raise what has ended the training, if anything but its limits has."""
        if of_reports and not _is_of_horovod(of_reports):
            raise of_reports
        if lost:
            raise LearnerLost(lost)
        if self._learner.failure:
            raise self._learner.failure

    def _wait_for_all_to_end(self, exchange: ReportExchange) -> str:
        """Wait until all learners have ended; return why another one failed, or an empty string."""
        learner, status = self._learner, self.status
        if status.endless:
            return status.endless
        # If another learner failed within a step, this one may wait in the all-reduce for ever.
        learner.join(1.0 if status.other_learners_failure() or exchange.failure else _END_SECONDS)
        failed_here = learner.failure and not isinstance(learner.failure, COMMON_FAILURES)
        until = time.monotonic() + FIRST_UPDATE_SECONDS
        together = exchange.finish(
            2.0 if failed_here or status.other_learners_failure() else _END_SECONDS,
            lambda: time.monotonic() < until and self._may_be_saving(),
        )
        if failed := status.other_learners_failure():
            return failed
        if learner.failure and not _is_of_horovod(learner.failure):
            return ""  # `run` raises it
        return "" if together and not learner.failure else "another learner is unreachable"

    def _may_be_saving(self) -> bool:
        """Return whether nothing hangs or has failed, so that learners may still be saving."""
        self._beat.look(time.monotonic())
        learner, silent = self._learner, time.monotonic() - self.status.reported_at
        fails = learner.failure or self.status.other_learners_failure()
        return silent < _END_SECONDS and not fails and not learner.variables_lock.locked()

    def wait_for_all_to_save(self) -> None:
        """Wait until all learners get here: one that exits earlier could end rank 0."""
        self.status.heartbeat.beat_during(lambda: self.status.group.gather(None, "saved"))

    @property
    def end_reason(self) -> str:
        """The reason why training ended, from the first learner that knows it."""
        reasons = [self._learner.end_reason, *(r.end_reason for r in self.status.reports)]
        return next(filter(None, reasons), "another learner stopped")


def _is_of_horovod(failure: BaseException) -> bool:
    """Return whether an exception is how Horovod says that a learner cannot be reached."""
    kinds = tf.errors.OpError | RuntimeError
    return isinstance(failure, kinds) and "horovod" in f"{type(failure).__name__} {failure}".lower()
