"""The training loop of a learner.

The path of an unroll ends here: the server has put it into its queue, `batch_source` takes batches
out of it while the previous step runs, and `lockstep` lets all learners begin a step together.
`Learner._step` updates the algorithm's variables with the batch and publishes the new parameters on
the server, from which actors fetch them. `monitor` measures, logs and saves in the meantime.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.parameter_layout import ParameterLayout
from impala_mm.data.trajectory import Batch
from impala_mm.distributed import consistency
from impala_mm.distributed.group import LearnerGroup
from impala_mm.learner import phases
from impala_mm.learner.batch_source import BatchSource
from impala_mm.learner.limits import RunLimits
from impala_mm.learner.lockstep import AgreedStep, Lockstep
from impala_mm.learner.offline_source import RECORDED
from impala_mm.learner.own_state import OwnState, Saved
from impala_mm.learner.profiler import UpdateProfiler
from impala_mm.learner.train_step import TrainStep
from impala_mm.records.metrics import Meter
from impala_mm.runtime import thread_names
from impala_mm.transport.server import Server

_LOCK_SECONDS = 1.0  # seconds that other threads wait for a running update


class Learner(threading.Thread):
    """The training loop, in a thread of its own.

    Python handles signals in the main thread only, which TensorFlow must therefore not block.
    """

    def __init__(
        self,
        config: Config,
        algorithm: Algorithm,
        group: LearnerGroup,
        source: BatchSource,
        server: Server,
        layout: ParameterLayout,
        limits: RunLimits,
        action_repeats: int,
        profiler: UpdateProfiler,
        own_state: OwnState | None = None,
    ):
        super().__init__(name="training", daemon=True)
        self._config, self._algorithm, self._group = config, algorithm, group
        self._source, self._server, self._layout = source, server, layout
        self._limits, self._repeats, self._profiler = limits, action_repeats, profiler
        watched = algorithm.variables.watched
        self._train_step = TrainStep(algorithm, group, config, layout.values, checked=watched)
        # Updates from recorded games with which the run begins, and those that were made.
        self.offline_planned = phases.planned_updates(config)
        self.offline_updates = 0
        self._offline_step: TrainStep | None = None
        if self.offline_planned:
            self._offline_step = TrainStep(
                algorithm, group, config, layout.values, watched, "offline_update"
            )
        self._asked_to_end = threading.Event()
        self._lockstep: Lockstep | None = None
        self.meter = Meter()
        self.variables_lock = threading.Lock()  # held while variables change; saving waits for it
        # Whether the variables are those after a complete update, not of one that runs or failed.
        self.variables_complete = True
        self.steps, self.updates = 0, 0  # steps of all learners; updates, the same on each
        self.updated_at = 0.0  # time.monotonic() when the last update ended; 0: there is none yet
        # Seconds of the longest update after the first one, which is traced; 0: there is none yet.
        self.longest_update = 0.0
        self._has_updated = False
        self.weight_size = 0.0  # of the last update, see `StepResult`
        self.sync_checks, self.sync_repairs = 0, 0
        self._replays = False  # whether a batch contained a replayed unroll
        self.actions: Any = None  # nest of [T+overlap, B, ...], of the last batch
        # What this learner saves for itself; None if it has nothing.
        self.own_state = own_state or None
        self._own_state_saved_at: int | None = None  # update
        self._moved_to = ""  # the folder where the run goes on, see `find_new_folder`
        # Set by rank 0's monitor. The first is called when all learners saved their own states,
        # with the results by rank and the time.monotonic() when updates stopped for it. The second
        # returns the updates whose states stay.
        self.take_snapshot: Callable[[list[Saved], float], None] | None = None
        self.kept_updates: Callable[[], list[int]] = list
        # Set by rank 0's monitor, too: it returns the folder where the run goes on if its own one
        # was removed, or "".
        self.find_new_folder: Callable[[], str] = str
        self.end_reason = ""  # why it ended or will end; empty if another learner knows
        self.failure: BaseException | None = None

    @property
    def frames(self) -> float:
        """The environment frames that all learners have played; a replayed one counts once."""
        return float(self.steps * self._repeats)

    def start_training(self, mean_return: Callable[[], float]) -> None:
        """Start the thread; `mean_return` is called on rank 0."""
        if not self.offline_left:
            self._publish(self._layout.values())
        self._own_state_saved_at = self.updates
        overlap = self._algorithm.unroll.overlap
        self._lockstep = Lockstep(
            self._source, self._group, overlap, mean_return, self._begin_update
        )
        if self._asked_to_end.is_set():
            self._lockstep.stop()
        self.start()

    def stop(self, reason: str) -> None:
        """End the training of all learners after one or two more steps."""
        self.end_reason = self.end_reason or reason
        self._asked_to_end.set()
        if self._lockstep:
            self._lockstep.stop()

    @property
    def offline_left(self) -> int:
        """The updates from recorded games that are still to come; none once actors have played."""
        is_begun = self.updates > self.offline_updates
        return 0 if is_begun else max(self.offline_planned - self.offline_updates, 0)

    @property
    def has_received(self) -> bool:
        """Whether the source has returned a batch that was not recorded before."""
        if self.offline_planned and self.updates == self.offline_updates:
            return False
        return self._lockstep is not None and self._lockstep.has_received

    @property
    def is_compiling(self) -> bool:
        """Whether the first update of a graph runs, which is traced and compiled."""
        return self.variables_lock.locked() and not self._has_updated

    def filling(self) -> tuple[int, int]:
        """Return the unrolls in the replay, and those that the first update needs; 0, 0: none."""
        return getattr(self._source, "filling", lambda: (0, 0))()

    def request_save(self) -> None:
        """Let all learners save their own states, and rank 0 take its snapshot, after a step."""
        assert self._lockstep
        self._lockstep.request_save()

    def run(self) -> None:
        """Make steps until a limit is reached or a learner stops; then save the own state."""
        thread_names.name_thread("training")
        try:
            # If another learner's source failed, that learner does not take part in saving.
            if not self._train():
                self._save_own_state()
        except BaseException as error:
            self.failure = error
            self.end_reason = f"{type(error).__name__}: {root_message(error)}"
        finally:
            self._profiler.stop()

    def _train(self) -> bool:
        """Make steps until all learners end; return whether one ends because its source failed."""
        assert self._lockstep
        asked_at, bookkeeping = time.monotonic(), 0.0
        while not self._limit_reached(math.nan):
            agreed = self._lockstep.next(timeout=0.2)
            received_at = time.monotonic()
            waits = self._wait_times(asked_at, received_at, agreed)
            if agreed is None:
                if self._group.size == 1 and self._lockstep.takes_save():
                    self._save_own_state()
                self.meter.add_times(**waits)
                asked_at = received_at
                continue
            if agreed.batch is None or self._limit_reached(agreed.episode_return):
                return agreed.failed
            trained = self._step(agreed, agreed.batch, waits | {"rest": bookkeeping})
            if agreed.saves:
                self._save_own_state()
            asked_at = time.monotonic()
            bookkeeping = asked_at - trained
        return False

    def _save_own_state(self) -> None:
        """Save the own state at the same update as all learners; then take rank 0's snapshot.

        Updates pause meanwhile. Nothing is done if no update was made since the last save.
        """
        if not self.own_state:
            return
        begin = time.monotonic()
        moved = self._group.gather(self.find_new_folder(), "folder")[0]
        if moved != self._moved_to:
            self._moved_to, self._own_state_saved_at = moved, None
            self.own_state.move(Path(moved))
        if self.updates == self._own_state_saved_at:
            return
        saved = self.own_state.save(self.updates)
        everyones = self._group.gather((saved, self.kept_updates()), "own_states")
        # The checkpoint of the last save may be being written now, and is then not among the kept.
        last, self._own_state_saved_at = self._own_state_saved_at, self.updates
        self.own_state.prune([*everyones[0][1], last or 0, self.updates])
        if self.take_snapshot:
            self.take_snapshot([each for each, _ in everyones], begin)

    def _wait_times(
        self, asked_at: float, received_at: float, agreed: AgreedStep | None
    ) -> dict[str, float]:
        """Return the seconds between these times spent on own unrolls and on other learners."""
        if self._group.size == 1:
            return {"wait": received_at - asked_at}
        assert self._lockstep
        ready = agreed.ready if agreed else self._lockstep.ready
        wait = min(max(ready - asked_at, 0.0), received_at - asked_at)
        return {"wait": wait, "exchange": received_at - asked_at - wait}

    def _step(self, agreed: AgreedStep, batch: Batch, times: dict[str, float]) -> float:
        """Make one update together with the other learners; return the time when it ended."""
        begin = time.monotonic()
        with self.variables_lock, self._profiler.update():
            self.variables_complete = False
            offline = bool(self.offline_left)
            train_step = self._offline_step if offline else self._train_step
            assert train_step
            values, reduce_seconds, priorities, acting_values, self.weight_size = train_step(
                batch, self.frames, self._limits.frames, agreed.episode_return, self.updates
            )
            self.variables_complete = True
            over = time.monotonic()
            if self._has_updated:
                self.longest_update = max(self.longest_update, over - begin)
            self._has_updated = True
            # The wall clock, by which it is measured, may be set meanwhile.
            reduce_seconds = min(max(reduce_seconds, 0.0), over - begin)
            times["exchange"] = times.get("exchange", 0.0) + reduce_seconds
            # Added before the counts change, so that a row with these steps has their time, too.
            self.meter.add_times(train=over - begin - reduce_seconds, **times)
            self.updated_at = over
            self.offline_updates += offline  # first: it is never behind for other threads
            self.updates += 1
            if offline and not self.offline_left:
                self._has_updated = False  # the next update is the first one of another graph
            self.steps += agreed.steps
            if self._check_sync():
                acting_values = self._layout.values()  # read again after the repair
        self._source.feedback(batch.key, priorities)
        if not self.offline_left:
            self._publish(acting_values)
        values |= self._composition(batch) | getattr(self._source, "metrics", dict)()
        values["queue_fill"] = self._server.fill()
        values |= self._server.inference_metrics()
        self.meter.add(values, agreed.own_steps)
        for report in self._server.take_reports():
            self.meter.add_episodes(report.level, report.episodes)
            self.meter.add_actor_times(report.times)
        self.actions = batch.unrolls.action
        return over

    def _composition(self, batch: Batch) -> dict[str, float]:
        """Return the metrics of which unrolls a batch consisted of, by key."""
        used, played = np.asarray(batch.weight) > 0, batch.played
        recorded = used & (np.asarray(batch.key) == RECORDED)
        values = {}
        if played.any():
            lag = self.updates - 1 - np.asarray(batch.version)[played]
            values["policy_lag"] = float(lag.mean())
        if recorded.any():
            values["recorded_share"] = float(recorded.sum() / used.sum())
        replayed = used & ~played & ~recorded
        self._replays |= bool(replayed.any())
        if self._replays and used.any():
            values["replay_share"] = float(replayed.sum() / used.sum())
        if replayed.any():
            age = self.updates - 1 - np.asarray(batch.version)[replayed]
            # A spill may hold unrolls of updates that the checkpoint of a resumed run lacks.
            values["replay_age"] = float(np.maximum(age, 0).mean())
        return values

    def _begin_update(self) -> None:
        if not self.offline_left:
            self._server.begin_update()

    def _publish(self, values: list[tf.Tensor]) -> None:
        """Publish the acting variables' values, which are packed when an actor asks for them."""
        self._server.publish(self.updates, lambda: self._layout.pack(values), values)

    def _check_sync(self) -> int:
        """Compare the learners' variables if it is time; return how many were repaired."""
        every = self._config.check_sync_every
        if self._group.size == 1 or not every or self.updates % every:
            return 0
        variables = self._algorithm.variables
        repaired = consistency.check_variables(
            self._group, [*variables.trained, *variables.carried]
        )
        self.sync_checks += 1
        self.sync_repairs += repaired
        return repaired

    def _limit_reached(self, episode_return: float) -> bool:
        """Return whether a limit is reached, equally on all learners; if so, set `end_reason`."""
        limits = self._limits
        if self.frames >= limits.frames:
            self.end_reason = f"reached {limits.frames:,.0f} frames"
        elif episode_return >= limits.episode_return:
            self.end_reason = f"the mean return reached {limits.episode_return:g}"
        else:
            return False
        return True


def root_message(error: BaseException) -> str:
    """Return the line of an error's message that says what failed; TensorFlow's have many."""
    noise = (" ", "\t", "Traceback", "Graph execution error", "Detected at node", "Hint:")
    several = ("successful operations", "derived errors ignored")
    lines = str(error).splitlines()
    said = [line for line in lines if line and not line.startswith(noise)]
    said = [line for line in said if not any(words in line for words in several)]
    roots = [
        line.strip() for line in lines if line.startswith("  (0) ")
    ]  # the first of several errors
    return (roots[:1] or said[-1:] or lines[:1] or [""])[0]


@contextlib.contextmanager
def between_updates(learner: Learner) -> Iterator[bool]:
    """Pause updates; yield False if one takes too long (another learner may hang) or has failed."""
    held = learner.variables_lock.acquire(timeout=_LOCK_SECONDS)
    try:
        yield held and learner.variables_complete
    finally:
        if held:
            learner.variables_lock.release()
