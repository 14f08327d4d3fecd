"""The watch over a running learner: each class is one matter, with one method `look`.

`monitor` calls each of them several times a second, in the order of its list. The first four do so
on every learner, the others on rank 0, which alone keeps the run's records.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.learner.first_unroll import FirstUnroll
from impala_mm.learner.learner import Learner
from impala_mm.learner.learner_reports import REPORT_SILENCE_SECONDS, unfinished_update
from impala_mm.learner.run_status import RunStatus, RunTime
from impala_mm.records.bottleneck import describe_filling
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.outputs import EventHook, RunOutputs, StallDetector
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import heartbeat
from impala_mm.runtime.log import Say
from impala_mm.transport.server import Server

# Seconds for which a learner whose first update is compiled sends heartbeats. A frontend that tries
# out a returned host expects to see within five minutes whether the learners hang.
_COMPILING_SECONDS = 180.0
_SILENT_SECONDS = 60  # seconds without anything from an actor, see `Server.forget_silent`
_LOOKS_FOR_FOLDER = 6  # half a second apart, until a folder counts as lost
_STALL_SECONDS = 60.0  # seconds without an update before a stall is reported


class WorkBeat:
    """The heartbeat to the supervisor, unless an update hangs or no reports arrive.

    A first update may take some minutes.
    """

    def __init__(self, learner: Learner, status: RunStatus):
        self._learner, self._status = learner, status
        self._heartbeat = heartbeat.of_learner()
        self._updates: int | None = None  # at the last look
        # time.monotonic() until which a first update may run
        self._compiling_until = time.monotonic() + _COMPILING_SECONDS

    def look(self, now: float) -> None:
        """Send the heartbeat if the learner works."""
        learner, before = self._learner, self._updates
        self._updates = learner.updates
        if not learner.is_compiling:
            self._compiling_until = now + _COMPILING_SECONDS
        works = learner.updates != before or not learner.variables_lock.locked()
        works |= learner.is_compiling and now < self._compiling_until
        if works and now - self._status.reported_at < REPORT_SILENCE_SECONDS:
            self._heartbeat.frames = learner.frames
            self._heartbeat.beat()

    def during(self, work: Callable[[], object]) -> None:
        """Send heartbeats until `work` has returned."""
        self._heartbeat.beat_during(work)


class TimeLimit:
    """The end of a run at --max_seconds."""

    def __init__(self, seconds: float, spent: RunTime, learner: Learner):
        self._seconds, self._spent, self._learner = seconds, spent, learner

    def look(self, now: float) -> None:
        """Count the time until now, and stop at the limit."""
        self._spent.count(now)
        if self._spent.counted >= self._seconds:
            self._learner.stop(f"reached --max_seconds={self._seconds:g} after the first unroll")


class FirstUnrollWatch:
    """The end of a run to which no unroll can come, and the lines that say what it waits for."""

    def __init__(self, first: FirstUnroll, learner: Learner, status: RunStatus, say: Say):
        self._first, self._learner, self._status, self._say = first, learner, status, say

    def look(self, now: float) -> None:
        """Stop if actors gave up or send invalid unrolls; before they may play, none can have."""
        del now
        if self._status.has_received:
            return
        if self._learner.offline_left:
            self._first.restart()
        elif why := self._first.why_none_comes(
            self._status.num_actors(), self._status.gave_up(), self._status.mistakes()
        ):
            self._status.no_unroll_comes = why
            self._learner.stop(why)

    @property
    def waits(self) -> bool:
        """Whether the run waits for its first unroll."""
        return not (self._learner.offline_left or self._status.has_received)

    def say_due_line(self, now: float) -> None:
        """Print what the run waits for, if it does and it is time."""
        del now
        if self.waits and self._first.is_line_due():
            self._say(self.describe())

    def describe(self) -> str:
        """Return what the run waits for, in words."""
        return self._first.describe(self._status.num_actors(), len(self._status.gave_up()))


class SilentActors:
    """The actors from which nothing is received any more: they count as gone."""

    def __init__(self, server: Server, say: Say):
        self._server, self._say = server, say

    def look(self, now: float) -> None:
        """Forget those that have been silent for long."""
        del now
        for actor in self._server.forget_silent(_SILENT_SECONDS):
            self._say(
                f"nothing was received from actor {actor} for "
                f"{self._server.patience * _SILENT_SECONDS} s: it counts as gone until its "
                f"next unroll"
            )


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


class FolderWatch:
    """The end of the run in another folder if its own one was removed, moved or replaced."""

    def __init__(self, records: Records, learner: Learner, say: Say):
        self._records, self._learner, self._say = records, learner, say
        self._looking = threading.Lock()
        self.lost = ""  # what happened to the run's folder, if it is not there any more

    def look(self, now: float) -> None:
        """Look before anything is written."""
        del now
        self.find_new()

    def find_new(self) -> str:
        """Return the new folder, or "" while the run has its own one.

        It is also called when all learners save their own states, in the training thread.
        """
        records = self._records
        with self._looking:
            if not self.lost and (why := _why_lost(records.folder)):
                records.move(records.folder.begin_beside())
                self.lost = f"{why} during the run"
                self._say(
                    f"error: {self.lost}: the run ends, and saves its last state to "
                    f"{records.folder.path}"
                )
                self._learner.stop(self.lost)
            return str(records.folder.path) if self.lost else ""


def _why_lost(folder: RunFolder) -> str:
    """Return `why_lost` of a folder, if it says the same for some seconds: a mount may return."""
    for _ in range(_LOOKS_FOR_FOLDER):
        why = folder.why_lost()
        if not why:
            return ""
        time.sleep(0.5)
    return why


class StallReports:
    """The reports of a minute without an update, to the user and to --event_hook."""

    def __init__(
        self,
        learner: Learner,
        status: RunStatus,
        waiting: FirstUnrollWatch,
        silence: Callable[[], str],
        event_hook: EventHook,
        say: Say,
    ):
        """Take `silence`, which returns the learners that do not answer, or ""."""
        self._learner, self._status, self._waiting = learner, status, waiting
        self._silence, self._event_hook, self._say = silence, event_hook, say
        self._detector = StallDetector(_STALL_SECONDS)

    def look(self, now: float) -> None:
        """Report a stall that has begun."""
        if not self._detector.has_begun(self._learner.updates, now):
            return
        if self._waiting.waits:  # the lines of the wait are printed anyway
            message = self._waiting.describe()
        else:
            message = f"no update for {_STALL_SECONDS:g} s{self._reason()}"
            self._say(message)
        self._event_hook.call("stall", message)

    def _reason(self) -> str:
        """Return why there is no update, as far as it is known, after a colon."""
        if silent := self._silence():
            return f": {silent}"
        filling = self._status.filling()
        if filling[1]:
            return f": {describe_filling(filling)}"
        seconds = time.monotonic() - self._status.reported_at
        return unfinished_update(self._status.reports, seconds)
