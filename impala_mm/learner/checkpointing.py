"""Rank 0's checkpoints: a run restores one when it starts and saves new ones while it trains.

`Saves` knows when one is due, and `monitor` calls it; `records.run_checkpoints` writes the files;
`resume` decides which run may continue from which checkpoint.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_mm.config.settings import Config
from impala_mm.data.variables import Variables
from impala_mm.learner import resume
from impala_mm.learner.learner import Learner, RunLimits, between_updates
from impala_mm.learner.own_state import Saved
from impala_mm.learner.run_status import RunTime
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo, Unwritable
from impala_mm.records.outputs import EventHook
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.records.run_folder import RunFolder, take_save_request
from impala_mm.runtime.log import Say
from impala_mm.runtime.timing import Interval


class Checkpointing:
    """The checkpoints of one run."""

    def __init__(
        self,
        config: Config,
        checkpoints: Checkpoints,
        variables: Variables,
        about: CheckpointInfo,
        limits: RunLimits,
        event_hook: EventHook,
        say: Say,
    ):
        """Take `about`, the description that all checkpoints of this process share."""
        self._config, self._checkpoints, self._variables = config, checkpoints, variables
        self._newest = about  # the newest checkpoint, of this process or an earlier one
        self._tenth = limits.frames / checkpoint.MILESTONES
        self._event_hook, self._say = event_hook, say
        self.saved = True  # whether the last checkpoint could be written
        # The checkpoint of another run with whose weights this process began a new run.
        self.started_from: tuple[Path, CheckpointInfo] | None = None
        self._snapshot: _Snapshot | None = None  # the one that must still be written
        self._writing = threading.Lock()  # held while the copied variables are written or read
        self._without_own_state = set[int]()  # learners that could not save theirs, as was printed

    def restore(self) -> CheckpointInfo | None:
        """Load the checkpoint that the run resumes from; return None for a new run.

        With --mode=train_from a new run loads the weights of --checkpoint. Raises Damaged, Mismatch
        or Missing.
        """
        config, ours = self._config, self._newest

        def check(about: CheckpointInfo) -> None:
            resume.check_resumable(about, ours.made_of, config.logdir)
            resume.check_teacher(about, config, config.logdir)

        found = self._checkpoints.restore(self._say, check)
        if found:
            for message in resume.resume_messages(found, config, ours.learners):
                self._say(message)
            if config.mode == "train_from":
                self._say("the run has started before: --checkpoint is not read again")
            self._newest = found
        elif config.mode == "train_from":
            path, source = resume.start_from(config, self._variables, ours.made_of)
            self.started_from = path, source
            and_optimizer = " and the optimizer" if config.reload_optimizer else ""
            self._say(
                f"training starts with the weights{and_optimizer} of {path} "
                f"({source.frames:,.0f} frames)"
            )
        self._newest = ours._replace(
            **{name: getattr(self._newest, name) for name in ("updates", "frames")}
        )
        return found

    def move(self, logdir: Path) -> None:
        """Save to another folder from now on, in which there is no checkpoint yet."""
        self._checkpoints.move(logdir)
        self._newest = self._newest._replace(updates=0)

    def save(
        self,
        learner: Learner,
        seconds: float,
        mean_return: float,
        counted_seconds: float | None = None,
        during: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> bool:
        """Save a checkpoint if updates were made since the newest one.

        Before the first update there is nothing to save. `mean_return`: the mean return of the last
        games, or NaN. `counted_seconds`: those that count towards --max_seconds. `during` is called
        with what writes the files. Return False if the caller should try again, because an update
        takes long (another learner may hang).
        """
        if learner.updates <= self._newest.updates:
            return True
        with between_updates(learner) as paused:
            if not paused:
                return False
            self.take_snapshot(learner)
        during(lambda: self.write_snapshot(seconds, mean_return, counted_seconds))
        return True

    def save_start(self, learner: Learner, seconds: float) -> None:
        """Save what is known before the first update, such as the teachers' mean returns."""
        self.take_snapshot(learner)
        with self._writing:
            assert self._snapshot
            about = self._about(self._snapshot, seconds, math.nan, None)
            self._snapshot = None
            try:
                self._checkpoints.save(about)
            except Unwritable as error:
                self._say(f"checkpoints cannot be written ({error}); what was measured is not kept")

    def describe_end(
        self, learner: Learner, seconds: float, mean_return: float, counted_seconds: float
    ) -> None:
        """Write the numbers at the run's end into the checkpoint of its last update.

        The last games may have ended after it was saved, and their return may end the run.
        """
        if learner.updates != self._newest.updates or math.isnan(mean_return):
            return
        self._checkpoints.describe_newest(
            seconds=seconds,
            counted_seconds=counted_seconds,
            episode_return=mean_return,
        )

    def take_snapshot(
        self, learner: Learner, own_states: Sequence[Saved] = (), began: float | None = None
    ) -> None:
        """Copy the variables between two updates, for `write_snapshot`.

        `own_states` says by rank how each learner saved its own state after this update, and
        `began` is the time.monotonic() since which updates pause; None stands for now.
        """
        for rank, saved in enumerate(own_states):
            if not saved.digest and rank not in self._without_own_state:
                self._without_own_state.add(rank)
                self._say(
                    f"learner {rank} cannot save its own state ({saved.why_not}): if the run is "
                    f"resumed from this checkpoint or a later one, learner {rank} starts without it"
                )
            elif saved.digest:
                self._without_own_state.discard(rank)
        with self._writing:  # the copies are also those that are being written
            begin = time.monotonic() if began is None else began
            self._checkpoints.snapshot()
            self._snapshot = _Snapshot(
                learner.updates,
                learner.steps,
                learner.frames,
                learner.offline_updates,
                tuple(saved.digest for saved in own_states),
                begin,
                time.monotonic() - begin,
            )

    @property
    def has_snapshot(self) -> bool:
        """Whether there is a snapshot that must still be written."""
        return self._snapshot is not None

    def write_snapshot(
        self, seconds: float, mean_return: float, counted_seconds: float | None
    ) -> None:
        """Write the last snapshot, unless it has been written; see `save` for the numbers."""
        with self._writing:
            if snapshot := self._snapshot:
                self._snapshot = None
                self._write(snapshot, seconds, mean_return, counted_seconds)

    def _write(
        self,
        snapshot: "_Snapshot",
        seconds: float,
        mean_return: float,
        counted_seconds: float | None,
    ) -> None:
        about = self._about(snapshot, seconds, mean_return, counted_seconds)
        try:
            self._checkpoints.save(about)
        except Unwritable as error:
            if self.saved:
                self._say(f"checkpoints cannot be written ({error}); earlier ones are kept")
            self.saved = False
            return
        self.saved, self._newest = True, about
        took, paused = time.monotonic() - snapshot.began, snapshot.paused
        message = (
            f"checkpoint at update {about.updates} ({took:.1f} s, training paused {paused:.2f} s)"
        )
        self._say(message)
        self._event_hook.call("save", message)

    def _about(
        self,
        snapshot: "_Snapshot",
        seconds: float,
        mean_return: float,
        counted_seconds: float | None,
    ) -> CheckpointInfo:
        frames = snapshot.frames
        return self._newest._replace(
            updates=snapshot.updates,
            steps=snapshot.steps,
            frames=frames,
            seconds=seconds,
            counted_seconds=counted_seconds,
            episode_return=None if math.isnan(mean_return) else mean_return,
            milestone=frames // self._tenth > self._newest.frames // self._tenth,
            own_states=snapshot.own_states,
            offline_updates=snapshot.offline_updates,
        )

    def newest_updates(self) -> list[int]:
        """Return the updates of the newest checkpoints, whose learners' own states are kept."""
        return self._checkpoints.newest()


class Saves:
    """The checkpoints that are due, or that the user asks for.

    If learners have states of their own, all of them save after a step; rank 0 writes the snapshot
    that it then took.
    """

    def __init__(
        self,
        checkpointing: Checkpointing,
        folder: RunFolder,
        learner: Learner,
        spent: RunTime,
        mean_return: Callable[[], float],
        during: Callable[[Callable[[], None]], None],
        seconds: float,
    ):
        """Save every `seconds`, to the run's `folder`; `during` is called with what writes."""
        self._checkpointing, self._folder = checkpointing, folder
        self._learner, self._spent, self._mean_return = learner, spent, mean_return
        self._during, self._seconds = during, seconds
        self._interval = Interval(seconds)

    def begin(self, find_new_folder: Callable[[], str]) -> None:
        """Begin with training; `find_new_folder` is that of `JointSaves`."""
        self._interval = Interval(self._seconds)
        if joint := self._learner.own_saves:
            joint.take_snapshot = functools.partial(
                self._checkpointing.take_snapshot, self._learner
            )
            joint.kept_updates = self._checkpointing.newest_updates
            joint.find_new_folder = find_new_folder

    def look(self, now: float) -> None:
        """Save if it is time or was asked for, and write what was saved."""
        if self._learner.own_saves:
            self._write_snapshot()
        is_asked = self._learner.updates and take_save_request(self._folder.path)
        if (self._interval.due(now) or is_asked) and not self._save():
            self._interval.retry()

    def end(self) -> None:
        """Save the last state, once no further update will be made."""
        if self._learner.own_saves:  # it has saved for itself
            self._write_snapshot()
        else:
            self._save()
        spent = self._spent
        self._checkpointing.describe_end(
            self._learner, spent.seconds, self._mean_return(), spent.counted
        )

    def _save(self) -> bool:
        """Save a checkpoint, see `Checkpointing.save`; with own states, all learners save soon."""
        if self._learner.own_saves:
            self._learner.request_save()
            return True
        spent, mean_return = self._spent, self._mean_return()
        return self._checkpointing.save(
            self._learner, spent.seconds, mean_return, spent.counted, self._during
        )

    def _write_snapshot(self) -> None:
        """Write the snapshot that was taken when all learners saved their own states, if any."""
        if self._checkpointing.has_snapshot:
            spent, mean_return = self._spent, self._mean_return()
            self._during(
                lambda: self._checkpointing.write_snapshot(
                    spent.seconds, mean_return, spent.counted
                )
            )


class _Snapshot(NamedTuple):
    """The counts that belong to a copy of the variables."""

    updates: int
    steps: int
    frames: float
    offline_updates: int
    own_states: tuple[str, ...]  # as in `CheckpointInfo`
    began: float  # time.monotonic()
    paused: float  # seconds in which no update could be made
