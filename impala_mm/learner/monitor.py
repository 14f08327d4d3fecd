"""The work of a learner's main thread while another thread trains.

It exchanges status reports with the other learners once a second (`learner_reports`), and calls
what looks after the learner (`watching`), one after another. Rank 0 alone keeps the records: rows
of metrics and progress lines (`row_writer`), checkpoints (`checkpointing`).
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config.errors import BadCheckpoint
from impala_mm.config.settings import Config
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.learner import resume
from impala_mm.learner.checkpointing import Saves
from impala_mm.learner.first_unroll import FirstUnroll, NoUnrollComes
from impala_mm.learner.learner import Learner, RunLimits
from impala_mm.learner.learner_reports import FIRST_UPDATE_SECONDS, ReportExchange
from impala_mm.learner.own_state import reload_source
from impala_mm.learner.row_writer import Rows, RowWriter
from impala_mm.learner.run_status import COMMON_FAILURES, RunStatus, RunTime
from impala_mm.learner.train_step import VariablesNotFinite, describe_not_finite
from impala_mm.learner.watching import (
    FirstUnrollWatch,
    FolderWatch,
    Records,
    SilentActors,
    StallReports,
    TimeLimit,
    WorkBeat,
)
from impala_mm.records.checkpoint import Mismatch
from impala_mm.records.metrics import MetricsAggregator
from impala_mm.runtime import lifecycle, starter
from impala_mm.runtime.log import Say
from impala_mm.transport.server import Server

_END_SECONDS = 10.0  # seconds that learners wait for each other at the end


class LearnerLost(Exception):
    """Another learner has failed or cannot be reached; the message says what is known."""


class LearnerMonitor:
    """The start, the watch over, and the end of one learner's training."""

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
        self.config, self._group, self._algorithm = config, group, algorithm
        self._learner, self._server, self._limits = learner, server, limits
        self._records = records
        self._aggregator = MetricsAggregator(
            {name: spec.scores for name, spec in levels.items()}, group.size
        )
        self._status = status = RunStatus(config, group, learner, server, self._aggregator)
        self.spent = RunTime(lambda: status.has_received)
        self.finished = ""  # why a resumed run has nothing left to do
        has_source = defines(algorithm.source)
        first_unroll = FirstUnroll(starter.num_actors(), has_source)
        waiting = FirstUnrollWatch(first_unroll, learner, status, say)
        self._beat = WorkBeat(learner, status)
        # All that is done several times a second, in this order.
        self._looks: list[Callable[[float], None]] = [
            self._beat.look,
            TimeLimit(limits.seconds, self.spent, learner).look,
            waiting.look,
            SilentActors(server, say).look,
        ]
        self._rows: Rows | None = None
        self._saves: Saves | None = None
        self._folder: FolderWatch | None = None
        if records:
            missing = functools.partial(_missing_learners, silence, status)
            writer = RowWriter(
                config, group, learner, server, status, self._aggregator, limits, missing
            )
            trained = algorithm.variables.trained
            self._rows = Rows(writer, records.metrics_writer, trained, self.spent, say, note)
            self._saves = Saves(
                records.checkpointing,
                records.folder,
                learner,
                self.spent,
                self._aggregator.mean_return,
                self._beat.during,
                config.save_checkpoint_secs,
            )
            self._folder = FolderWatch(records, learner, say)
            event_hook = records.outputs.event_hook
            self._looks += [
                self._folder.look,
                self._rows.look,
                waiting.say_due_line,
                StallReports(learner, status, waiting, missing, event_hook, say).look,
                self._saves.look,
            ]

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
                path = f"{self.config.logdir}/checkpoints/{about.updates:010d}"
                raise VariablesNotFinite(
                    f"the checkpoint is not finite: {bad}: remove {path}, and the run resumes from "
                    f"the one before it"
                )
            raise VariablesNotFinite(f"the weights with which the run starts are not finite: {bad}")
        learner = self._learner
        own_state = learner.own_saves.state if learner.own_saves else None
        if own_state and about:
            own_state.restore(about)
        if started_from and self.config.reload_replay:
            path, other = started_from
            reload_source(own_state, path, other, self._group)
        if about:
            learner.updates, learner.steps = about.updates, about.steps
            learner.offline_updates = about.offline_updates
            self.spent.seconds, self.spent.counted = about.seconds, about.limited_seconds
            self.finished = resume.why_finished(about, self._limits)
        return about is not None

    def exit_code(self, signals: list[int]) -> int:
        """Return the exit code after these signals; 2 if the folder is lost: no restart helps."""
        if self._folder and self._folder.lost:
            return 2
        if self.finished:
            return 0
        return 1 if self.why_unsaved else lifecycle.exit_code(signals)

    @property
    def why_unsaved(self) -> str:
        """Why the last checkpoint is not in the run's own folder, as far as this learner saves."""
        if self._records and not self._records.checkpointing.saved:
            return "the last checkpoint could not be written"
        return self._folder.lost if self._folder else ""

    def run(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Watch until training ends; return the last row of metrics.

        `meanwhile` is called several times a second. Raises the exception that ended this learner's
        training, or LearnerLost if another learner has failed.
        """
        learner = self._learner
        exchange = ReportExchange(self._group, self._status.report, self._status.receive)
        self.begin()
        learner.start_training(self._mean_return)
        self._status.reported_at = time.monotonic()
        exchange.start()
        while learner.is_alive() and not exchange.failure and not self._status.why_lost():
            learner.join(0.1)
            meanwhile()
            self.look()
        lost = self._wait_for_all_to_end(exchange)
        return self.end(lost, exchange.failure)

    def run_here(self) -> dict[str, Any]:
        """Train in this thread; return the last row. The source of batches calls `look_alone`."""
        self.begin()
        self._learner.prepare_training(self._mean_return)
        self._learner.run()
        return self.end()

    def look_alone(self) -> None:
        """Look after the learner between two updates, without a thread for reports."""
        self._status.receive([self._status.report()])
        if self._learner.has_received:
            self.look()

    def begin(self) -> None:
        """Begin the records, before the first update."""
        learner = self._learner
        self.spent.begin()
        if self._records:
            settings = dataclasses.asdict(self.config) | {"num_learners": self._group.size}
            self._records.metrics_writer.write_settings(settings, learner.frames)
        self._aggregator.start(learner.frames, learner.steps, learner.updates)
        if self._rows:
            self._rows.begin()
        if self._saves and self._folder:
            self._saves.begin(self._folder.find_new)

    def look(self) -> None:
        """Call all that looks after the learner."""
        now = time.monotonic()
        for look in self._looks:
            look(now)

    def end(self, lost: str = "", of_reports: BaseException | None = None) -> dict[str, Any]:
        """End the records and the server; return the last row, or raise what ended the training.

        `lost` says why another learner failed, and `of_reports` is what ended their reports.
        """
        learner, row = self._learner, dict[str, Any]()
        self.spent.count_all(time.monotonic())
        if self._folder:
            self._folder.find_new()
        if self._rows:
            row = self._rows.write()
        if self._saves and learner.failure is None and not learner.is_alive():
            self._saves.end()
        self._server.close()
        self._raise_failure(lost, of_reports)
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
        self._beat.look(time.monotonic())
        learner, silent = self._learner, time.monotonic() - self._status.reported_at
        fails = learner.failure or self._status.other_learners_failure()
        return silent < _END_SECONDS and not fails and not learner.variables_lock.locked()

    def wait_for_all_to_save(self) -> None:
        """Wait until all learners get here: one that exits earlier could end rank 0."""
        self._beat.during(lambda: self._group.gather(None, "saved"))

    @property
    def end_reason(self) -> str:
        """The reason why training ended, from the first learner that knows it."""
        reasons = [
            self._learner.end_reason,
            *(report.end_reason for report in self._status.reports),
        ]
        return next(filter(None, reasons), "another learner stopped")

    def _mean_return(self) -> float:
        """Return rank 0's mean return, which no longer changes once it ends the run."""
        self._aggregator.collect(0, self._learner.meter)
        mean_return = self._aggregator.mean_return()
        if mean_return >= self._limits.episode_return:
            self._aggregator.close()
        return mean_return


def _missing_learners(silence: Callable[[float], str], status: RunStatus) -> str:
    """Return which learners have not answered since the last reports, or ""."""
    return silence(status.reported_at)


def _is_of_horovod(failure: BaseException) -> bool:
    """Return whether an exception is how Horovod says that a learner cannot be reached."""
    kinds = tf.errors.OpError | RuntimeError
    return isinstance(failure, kinds) and "horovod" in f"{type(failure).__name__} {failure}".lower()
