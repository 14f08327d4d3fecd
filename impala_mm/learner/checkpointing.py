"""Rank 0's checkpoints: a run restores one when it starts and saves new ones while it trains.

`monitor` calls it; `records.run_checkpoints` writes the files; `resume` decides which run may
continue from which checkpoint. If learners have states of their own (`own_state`), all of them save
after the same step (`JointSaves`), and rank 0 writes the snapshot that it then took.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_mm.learner import resume
from impala_mm.learner.learner import Learner, between_updates
from impala_mm.learner.own_state import Saved
from impala_mm.learner.run_status import RunStatus
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch, Unwritable
from impala_mm.records.outputs import EventHook
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.records.run_folder import take_save_request
from impala_mm.runtime.timing import Interval


class Checkpointing:
    """The checkpoints of one run: those that are due, and those that the user asks for."""

    def __init__(
        self,
        status: RunStatus,
        checkpoints: Checkpoints,
        about: CheckpointInfo,
        event_hook: EventHook,
    ):
        """Take `about`, the description that all checkpoints of this process share."""
        self._status, self._learner, self._checkpoints = status, status.learner, checkpoints
        self._newest = about  # the newest checkpoint, of this process or an earlier one
        self._tenth = status.learner.limits.frames / checkpoint.MILESTONES
        self._event_hook = event_hook
        self.saved = True  # whether the last checkpoint could be written
        # The checkpoint of another run with whose weights this process began a new run.
        self.started_from: tuple[Path, CheckpointInfo] | None = None
        self._snapshot: _Snapshot | None = None  # the one that must still be written
        self._writing = threading.Lock()  # held while the copied variables are written or read
        self._without_own_state = set[int]()  # learners that could not save theirs, as was printed
        self._interval = Interval(status.config.save_checkpoint_secs)

    def restore(self) -> CheckpointInfo | None:
        """Load the checkpoint that the run resumes from; return None for a new run.

        With --mode=train_from a new run loads the weights of --checkpoint. Raises Damaged, Mismatch
        or Missing.
        """
        config, ours, say = self._status.config, self._newest, self._status.say
        checked: CheckpointInfo | None = None

        def check(about: CheckpointInfo) -> None:
            nonlocal checked
            resume.check_resumable(about, ours.made_of, config.logdir)
            resume.check_teacher(about, config, config.logdir)
            checked = about

        try:
            restored = self._checkpoints.restore(say, check)
        except Mismatch as error:
            raise resume.with_changes(error, checked, config) if checked else error from None
        if restored:
            for message in resume.resume_messages(restored, config, ours.learners):
                say(message)
            if config.mode == "train_from":
                say("the run has started before: --checkpoint is not read again")
            self._newest = ours._replace(updates=restored.updates, frames=restored.frames)
        elif config.mode == "train_from":
            variables = self._learner.algorithm.variables
            path, source = resume.start_from(config, variables, ours.made_of)
            self.started_from = path, source
            and_optimizer = " and the optimizer" if config.reload_optimizer else ""
            say(
                f"training starts with the weights{and_optimizer} of {path} "
                f"({source.frames:,.0f} frames)"
            )
        return restored

    def begin(self) -> None:
        """Begin with training."""
        self._interval = Interval(self._status.config.save_checkpoint_secs)

    def look(self, now: float, folder: Path) -> None:
        """Save if it is time or was asked for in the run's folder, and write what was saved."""
        if self._snapshot:
            self._write_snapshot()
        is_asked = self._learner.updates and take_save_request(folder)
        if not (self._interval.due(now) or is_asked):
            return
        if self._learner.own_state:
            self._learner.request_save()  # all learners save soon
        elif not self.save():
            self._interval.retry()

    def end(self) -> None:
        """Save the last state, once no further update will be made; describe the run's end.

        The last games may have ended after it was saved, and their return may end the run.
        """
        if not self._learner.own_state:  # otherwise it has saved for itself
            self.save()
        if self._snapshot:
            self._write_snapshot()
        mean_return = self._status.mean_return
        if self._learner.updates == self._newest.updates and not math.isnan(mean_return):
            self._checkpoints.change_newest(
                seconds=self._status.seconds,
                episode_return=mean_return,
            )

    def move(self, logdir: Path) -> None:
        """Save to another folder from now on, in which there is no checkpoint yet."""
        self._checkpoints.move(logdir)
        self._newest = self._newest._replace(updates=0)

    def save(self) -> bool:
        """Save a checkpoint if updates were made since the newest one.

        Before the first update there is nothing to save. Return False if the caller should try
        again, because an update takes long (another learner may hang).
        """
        if self._learner.updates <= self._newest.updates:
            return True
        with between_updates(self._learner) as paused:
            if not paused:
                return False
            self.take_snapshot()
        self._write_snapshot()
        return True

    def save_start(self) -> None:
        """Save what is known before the first update, such as the teachers' mean returns."""
        self.take_snapshot()
        with self._writing:
            assert self._snapshot
            about = self._about(self._snapshot)
            self._snapshot = None
            try:
                self._checkpoints.save(about)
            except Unwritable as error:
                self._status.say(
                    f"checkpoints cannot be written ({error}); what was measured is not kept"
                )

    def take_snapshot(self, own_states: Sequence[Saved] = (), began: float | None = None) -> None:
        """Copy the variables between two updates, to be written soon.

        `own_states` says by rank how each learner saved its own state after this update, and
        `began` is the time.monotonic() since which updates pause; None stands for now.
        """
        for rank, saved in enumerate(own_states):
            if not saved.digest and rank not in self._without_own_state:
                self._without_own_state.add(rank)
                self._status.say(
                    f"learner {rank} cannot save its own state ({saved.why_not}): if the run is "
                    f"resumed from this checkpoint or a later one, learner {rank} starts without it"
                )
            elif saved.digest:
                self._without_own_state.discard(rank)
        learner = self._learner
        with self._writing:  # the copies are also those that are being written
            begin = time.monotonic() if began is None else began
            self._checkpoints.snapshot()
            about = self._newest._replace(
                updates=learner.updates,
                steps=learner.steps,
                frames=learner.frames,
                offline_updates=learner.offline_updates,
                own_states=tuple(saved.digest for saved in own_states),
            )
            self._snapshot = _Snapshot(about, begin, time.monotonic() - begin)

    def newest_updates(self) -> list[int]:
        """Return the updates of the newest checkpoints, whose learners' own states are kept."""
        return self._checkpoints.newest()

    def _write_snapshot(self) -> None:
        """Write the last snapshot, unless it has been written; send heartbeats meanwhile."""

        def write() -> None:
            with self._writing:
                if snapshot := self._snapshot:
                    self._snapshot = None
                    self._write(snapshot)

        self._status.heartbeat.beat_during(write)

    def _write(self, snapshot: "_Snapshot") -> None:
        about, say = self._about(snapshot), self._status.say
        try:
            self._checkpoints.save(about)
        except Unwritable as error:
            if self.saved:
                say(f"checkpoints cannot be written ({error}); earlier ones are kept")
            self.saved = False
            return
        self.saved, self._newest = True, about
        took, paused = time.monotonic() - snapshot.began, snapshot.paused
        message = (
            f"checkpoint at update {about.updates} ({took:.1f} s, training paused {paused:.2f} s)"
        )
        say(message)
        self._event_hook.call("save", message)

    def _about(self, snapshot: "_Snapshot") -> CheckpointInfo:
        """Return a snapshot's description, with what is known of the games by now."""
        frames, mean_return = snapshot.about.frames, self._status.mean_return
        return snapshot.about._replace(
            seconds=self._status.seconds,
            episode_return=None if math.isnan(mean_return) else mean_return,
            milestone=frames // self._tenth > self._newest.frames // self._tenth,
            ratings=self._status.aggregator.ratings.saved(),
        )


class JointSaves:
    """The saves of the learners' own states, which all of them make after the same update."""

    def __init__(
        self,
        learner: Learner,
        checkpointing: Checkpointing | None,
        find_new_folder: Callable[[], str],
    ):
        """Save the learner's state; `checkpointing` is rank 0's.

        `find_new_folder` returns rank 0's folder where the run goes on, if its own one was removed.
        """
        self._learner, self._checkpointing = learner, checkpointing
        self._find_new_folder, self._moved_to = find_new_folder, ""
        self._saved_at: int | None = learner.updates

    def save(self) -> None:
        """Save the state together with all learners; then take rank 0's snapshot.

        Updates pause meanwhile. Nothing is done if no update was made since the last save.
        """
        begin, updates, state = time.monotonic(), self._learner.updates, self._learner.own_state
        group, keeper = self._learner.group, self._checkpointing
        assert state
        moved = group.gather(self._find_new_folder(), "folder")[0]
        if moved != self._moved_to:
            self._moved_to, self._saved_at = moved, None
            state.move(Path(moved))
        if updates == self._saved_at:
            return
        kept = keeper.newest_updates() if keeper else []
        everyones = group.gather((state.save(updates), kept), "own_states")
        # The checkpoint of the last save may be being written now, and is then not among the kept.
        last, self._saved_at = self._saved_at, updates
        state.prune([*everyones[0][1], last or 0, updates])
        if keeper:
            keeper.take_snapshot([saved for saved, _ in everyones], begin)


class _Snapshot(NamedTuple):
    """A copy of the variables that must still be written."""

    about: CheckpointInfo  # but for what is known of the games once it is written
    began: float  # time.monotonic()
    paused: float  # seconds in which no update could be made
