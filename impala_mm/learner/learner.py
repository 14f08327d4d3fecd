"""The training loop of a learner: take a batch, update, publish.

    batch      `Lockstep.next`     from the source (`sources`), once every learner has one
    update     `TrainStep`         the algorithm's `update`, as one graph
    priorities `source.feedback`   to what is replayed
    publish    `Server.publish`    the new parameters, from which actors choose the next actions

`Learner._train` takes the batches, and `Learner._step` is the rest; all else is called from these
two. Meanwhile the process's main thread watches, logs and saves (`monitor`).
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.episodes import ReportedEpisodes
from impala_mm.data.trajectory import Batch
from impala_mm.data.variables import ParameterLayout
from impala_mm.distributed.group import LearnerGroup, check_variables
from impala_mm.learner.lockstep import AgreedStep, Lockstep, MeanReturns
from impala_mm.learner.own_state import OwnState
from impala_mm.learner.sources.batch_source import BatchSource, Composition
from impala_mm.learner.train_step import StepResult, TrainStep, UpdateProfiler
from impala_mm.records.metrics import Meter
from impala_mm.runtime import lifecycle, starter
from impala_mm.transport.connected_actors import ActorReport
from impala_mm.transport.server import Server

_LOCK_SECONDS = 1.0  # seconds that other threads wait for a running update


class RunLimits:
    """The limits of a run, which ends at the first one that it reaches."""

    def __init__(self, config: Config, reward_threshold: float | None):
        self.frames = config.total_environment_frames or 50e6
        self.episode_return = config.stop_at_return
        if not config.total_environment_frames and math.isinf(config.stop_at_return):
            self.episode_return = math.inf if reward_threshold is None else reward_threshold
        self.seconds = config.max_seconds  # counted from the first unroll of each start
        ends = starter.ends_offline(config)
        self.offline_updates = config.planned_offline_updates if ends else math.inf

    def why_reached(self, frames: float, episode_return: float, offline_updates: int) -> str:
        """Return why a run ends that has reached this; empty if it goes on."""
        if offline_updates >= self.offline_updates:
            return f"made its {offline_updates:,} updates from recorded games"
        if frames >= self.frames:
            return f"reached {self.frames:,.0f} frames"
        if episode_return >= self.episode_return:
            return f"the mean return reached {self.episode_return:g}"
        return ""


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
        self.config, self.algorithm, self.group = config, algorithm, group
        self._source, self.server, self._layout = source, server, layout
        self.limits, self._repeats, self._profiler = limits, action_repeats, profiler
        watched, values = algorithm.variables.watched, layout.values
        self._train_step = TrainStep(algorithm, group, config, values, watched)
        # Updates from recorded games with which the run begins, and those that were made.
        self.offline_planned = config.planned_offline_updates
        self.offline_updates = 0
        self._offline_step: TrainStep | None = None
        if self.offline_planned:
            self._offline_step = TrainStep(
                algorithm, group, config, values, watched, "offline_update"
            )
        self._asked_to_end = threading.Event()
        self._lockstep: Lockstep | None = None
        self.meter = Meter()
        self._clock, self._composition = _Clock(self.meter), Composition()
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
        self.actions: Any = None  # nest of [T+overlap, B, ...], of the last batch
        self.own_state = own_state or None  # None: this learner has nothing to save for itself
        self.save_own_state: Callable[[], None] = lambda: None  # together with all learners
        self.end_reason = ""  # why it ended or will end; empty if another learner knows
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Make steps until a limit is reached or a learner stops; then save the own state."""
        lifecycle.name_thread("training")
        try:
            # If another learner's source failed, that learner does not take part in saving.
            if not self._train():
                self.save_own_state()
        except BaseException as error:
            self.failure = error
            self.end_reason = f"{type(error).__name__}: {root_message(error)}"
        finally:
            self._profiler.stop()

    def _train(self) -> bool:
        """Make steps until all learners end; return whether one ends because its source failed."""
        assert self._lockstep
        while not self._reaches_limit(math.nan):
            self._clock.begin_to_wait()
            agreed = self._lockstep.next(timeout=0.2)
            ready = agreed.ready if agreed else self._lockstep.ready
            self._clock.end_waiting(agreed is not None, ready if self.group.size > 1 else None)
            if agreed is None:
                if self.group.size == 1 and self._lockstep.takes_save():
                    self.save_own_state()
                continue
            if agreed.batch is None or self._reaches_limit(agreed.returns.of_all):
                return agreed.failed
            self._step(agreed, agreed.batch)
            if agreed.saves:
                self.save_own_state()
        return False

    def _step(self, agreed: AgreedStep, batch: Batch) -> None:
        """Learn from one batch together with the other learners."""
        result = self._update(agreed, batch)
        self._source.feedback(batch.key, result.priorities)
        self._publish(result.acting_values)
        self._measure(agreed, batch, result.metrics)

    def _reaches_limit(self, episode_return: float) -> bool:
        """Return whether a limit is reached, equally on all learners; if so, set `end_reason`."""
        reason = self.limits.why_reached(self.frames, episode_return, self.offline_updates)
        self.end_reason = reason or self.end_reason
        return bool(reason)

    def _update(self, agreed: AgreedStep, batch: Batch) -> StepResult:
        """Make one update together with the other learners, and count it."""
        begin = time.monotonic()
        with self.variables_lock, self._profiler.update():
            self.variables_complete = False
            offline = bool(self.offline_left)
            train_step = self._offline_step if offline else self._train_step
            assert train_step
            result = train_step(
                batch,
                *self._progress,
                agreed.returns.least_exploring,
                self.updates,
            )
            self.variables_complete = True
            self.updated_at = time.monotonic()
            if self._has_updated:
                self.longest_update = max(self.longest_update, self.updated_at - begin)
            self._has_updated = True
            # Counted before the update is, so that a row with these steps has their time, too.
            self._clock.count_update(begin, self.updated_at, result.reduce_seconds)
            self.weight_size = result.weight_size
            self.offline_updates += offline  # first: it is never behind for other threads
            self.updates += 1
            if offline and not self.offline_left:
                self._has_updated = False  # the next update is the first one of another graph
            self.steps += agreed.steps
            if self._check_sync():  # the variables are read again after the repair
                result = result._replace(acting_values=self._layout.values())
        return result

    def _publish(self, values: list[tf.Tensor]) -> None:
        """Publish the acting variables' values, which are packed when an actor asks for them."""
        if not self.offline_left:
            self.server.publish(self.updates, lambda: self._layout.pack(values), values)

    def _measure(self, agreed: AgreedStep, batch: Batch, metrics: dict[str, float]) -> None:
        """Add the last update, and what actors have reported, to the meter."""
        values = metrics | self._composition.of(batch, self.updates - 1)
        values |= self._source.metrics()
        values["queue_fill"] = self.server.fill()
        values |= self.server.inference_metrics()
        self.meter.add(values, agreed.own_steps)
        for report in self.server.actors.take_reports():
            self.meter.add_episodes(self._reported(report))
            self.meter.add_actor_times(report.times)
        self.actions = batch.unrolls.action

    def _reported(self, report: ActorReport) -> ReportedEpisodes:
        """Return the episodes of a report, whose environments get their numbers in the run."""
        numbers, rows = self.server.numbers, report.episodes.astype(np.float64)
        rows[:, 0] = numbers.in_run(report.actor, rows[:, 0])
        return ReportedEpisodes(report.level, report.actor, report.version, rows, numbers.count)

    def _check_sync(self) -> int:
        """Compare the learners' variables if it is time; return how many were repaired."""
        every = self.config.check_sync_every
        if self.group.size == 1 or not every or self.updates % every:
            return 0
        variables = self.algorithm.variables
        repaired = check_variables(self.group, [*variables.trained, *variables.carried])
        self.sync_checks += 1
        self.sync_repairs += repaired
        return repaired

    # -- what the main thread calls and reads

    def prepare_training(self, mean_returns: Callable[[], MeanReturns]) -> None:
        """Publish the first parameters; afterwards the thread can be started, or `run` called.

        `mean_returns` is called on rank 0.
        """
        self._publish(self._layout.values())
        overlap = self.algorithm.unroll.overlap
        self._lockstep = Lockstep(
            self._source, self.group, overlap, mean_returns, self._begin_update
        )
        if self._asked_to_end.is_set():
            self._lockstep.stop()

    def newest_policy(self) -> bytes:
        """Return the acting variables' present values, as actors receive them."""
        return self._layout.pack(self._layout.values())

    def _begin_update(self) -> None:
        if not self.offline_left:
            self.server.begin_update()

    def stop(self, reason: str) -> None:
        """End the training of all learners after one or two more steps."""
        self.end_reason = self.end_reason or reason
        self._asked_to_end.set()
        if self._lockstep:
            self._lockstep.stop()

    def request_save(self) -> None:
        """Let all learners save their own states, and rank 0 take its snapshot, after a step."""
        assert self._lockstep
        self._lockstep.request_save()

    @property
    def frames(self) -> float:
        """The environment frames that all learners have played; a replayed one counts once."""
        return float(self.steps * self._repeats)

    @property
    def _progress(self) -> tuple[float, float]:
        """How far schedules are: the frames and their limit, or updates, where no actor plays."""
        if math.isfinite(self.limits.offline_updates):
            return self.offline_updates, self.limits.offline_updates
        return self.frames, self.limits.frames

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
        return self._source.filling()


class _Clock:
    """The seconds of the training thread by what it does, for the meter."""

    def __init__(self, meter: Meter):
        self._meter = meter
        self._asked_at = self._updated_at = 0.0  # time.monotonic(); 0: not since the last wait
        self._waits, self._rest = dict[str, float](), 0.0

    def begin_to_wait(self) -> None:
        """Begin to wait for the next batch: the time since the last update was the rest."""
        self._asked_at = time.monotonic()
        if self._updated_at:
            self._rest, self._updated_at = self._asked_at - self._updated_at, 0.0

    def end_waiting(self, has_step: bool, ready: float | None) -> None:
        """End the wait, in which from `ready` on other learners were waited for, if any are."""
        waited = time.monotonic() - self._asked_at
        self._waits = {"wait": waited}
        if ready is not None:
            own = min(max(ready - self._asked_at, 0.0), waited)
            self._waits = {"wait": own, "exchange": waited - own}
        if not has_step:
            self._meter.add_times(**self._waits)

    def count_update(self, began: float, ended: float, exchange: float) -> None:
        """Add an update's time, of which `exchange` were spent in it on the other learners."""
        # The wall clock, by which that is measured, may be set meanwhile.
        exchange = min(max(exchange, 0.0), ended - began)
        times = {"rest": self._rest, "train": ended - began - exchange} | self._waits
        times["exchange"] = times.get("exchange", 0.0) + exchange
        self._meter.add_times(**times)
        self._waits, self._updated_at = {}, ended


def root_message(error: BaseException) -> str:
    """Return the line of an error's message that says what failed; TensorFlow's have many."""
    noise = (" ", "\t", "Traceback", "Graph execution error", "Detected at node", "Hint:")
    several = ("successful operations", "derived errors ignored")
    lines = str(error).splitlines()
    said = [line for line in lines if line and not line.startswith(noise)]
    said = [line for line in said if not any(words in line for words in several)]
    # The first of several errors.
    roots = [line.strip() for line in lines if line.startswith("  (0) ")]
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
