"""Lockstep: all learners make the same steps, and agree on each step before they make it.

    source ---batch---> Lockstep ---AgreedStep---> learner._step
                           |
             one small sum over learners per step: whether one stops or has failed, steps,
             mean return, whether to save

`next` returns a learner's batch once every learner has one. Learners agree on the next step while
the current one runs, so this takes no extra time if batches are available. A learner that has to
stop, because of a signal or a failed source, takes part in the next agreement without a batch, and
all learners stop before that step. A single learner has nothing to agree on and needs no thread.
"""

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Batch
from impala_mm.distributed.group import LearnerGroup
from impala_mm.learner.sources.batch_source import BatchSource
from impala_mm.runtime import lifecycle


class MeanReturns(NamedTuple):
    """Mean raw returns of the newest games; NaN before they are known."""

    of_all: float  # NaN also while a teacher acts in the games
    # Of environments that explore least, where they differ by their numbers; else of all.
    least_exploring: float


UNKNOWN = MeanReturns(math.nan, math.nan)


class AgreedStep(NamedTuple):
    """One step that all learners make."""

    batch: Batch | None  # this learner's batch; None if all learners stop instead
    steps: int  # environment steps played in the batches of all learners
    own_steps: int  # environment steps played in this learner's batch
    returns: MeanReturns  # rank 0's
    ready: float  # time.monotonic() when this learner had its batch
    saves: bool = False  # all learners save their own states after this step
    failed: bool = False  # a learner stops the others because its source failed


class Lockstep:
    """A thread that agrees with the other learners on the next step, one step ahead."""

    def __init__(
        self,
        source: BatchSource,
        group: LearnerGroup,
        overlap: int,
        mean_returns: Callable[[], MeanReturns],
        has_batch: Callable[[], None] = lambda: None,
    ):
        """Agree on steps; `has_batch` is called whenever the source has returned a batch."""
        self._source, self._group, self._overlap = source, group, overlap
        self._mean_returns = mean_returns  # called on rank 0
        self._has_batch = has_batch
        self._stopping, self._saving = threading.Event(), threading.Event()
        self._agreed: queue.Queue[AgreedStep] = queue.Queue(maxsize=1)
        self._failure: BaseException | None = None
        # time.monotonic() when this learner got its batch; infinite while it waits for one.
        self.ready = math.inf
        self.has_received = False  # whether the source has returned a batch
        if group.size > 1:
            threading.Thread(target=self._run, name="lockstep", daemon=True).start()

    def stop(self) -> None:
        """Stop all learners after one or two more steps."""
        self._stopping.set()

    def request_save(self) -> None:
        """Let all learners save their own states after one of the next steps; for rank 0."""
        self._saving.set()

    def next(self, timeout: float) -> AgreedStep | None:
        """Return the next step, or None if it is not agreed on within `timeout` seconds."""
        if self._group.size == 1:
            return self._next_alone(timeout)
        try:
            agreed = self._agreed.get(timeout=timeout)
        except queue.Empty:
            return None
        self._agreed.task_done()
        if agreed.batch is None and self._failure:
            raise self._failure
        return agreed

    def _next_alone(self, timeout: float) -> AgreedStep | None:
        """Return the next step of a single learner, or None after `timeout` seconds."""
        stops = self._stopping.is_set()
        # Called even when stopping, since it raises the source's failure.
        batch = self._source.next(0.0 if stops else timeout)
        if stops:
            return AgreedStep(None, 0, 0, UNKNOWN, time.monotonic())
        if batch is None:
            return None
        steps = self._take(batch)
        returns = self._mean_returns()
        return AgreedStep(batch, steps, steps, returns, time.monotonic(), self.takes_save())

    def takes_save(self) -> bool:
        """Return whether a save was requested, once for each request."""
        requested = self._saving.is_set()
        self._saving.clear()
        return requested

    def _run(self) -> None:
        """Agree on one step after another until all learners stop."""
        lifecycle.name_thread("lockstep")
        going = True
        while going:
            agreed = self._agree()
            going = agreed.batch is not None
            self._agreed.put(agreed)
            self._agreed.join()  # wait until `next` takes this step
            self.ready = math.inf

    def _agree(self) -> AgreedStep:
        """Wait for a batch, and return the step once all learners have one."""
        batch, own_steps = self._next_batch()
        self.ready = ready = time.monotonic()
        own = [
            batch is None,
            own_steps,
            *(self._mean_returns() if self._group.rank == 0 else (0.0, 0.0)),
            self.takes_save(),
            self._failure is not None,
        ]
        try:
            total = self._group.sum(tf.constant(own, tf.float64), "lockstep")
        except BaseException as error:  # a learner is unreachable
            self._failure = self._failure or error
            return AgreedStep(None, 0, 0, UNKNOWN, ready)
        stopping, steps, of_all, least_exploring, saves, failed = total.numpy().tolist()
        return AgreedStep(
            batch=None if stopping else batch,
            steps=round(steps),
            own_steps=own_steps,
            returns=MeanReturns(of_all, least_exploring),
            ready=ready,
            saves=bool(saves),
            failed=bool(failed),
        )

    def _next_batch(self) -> tuple[Batch | None, int]:
        """Return this learner's batch and its steps; None if it must stop or its source failed."""
        try:
            while not self._stopping.is_set():
                batch = self._source.next(timeout=0.2)
                if batch is not None:
                    return batch, self._take(batch)
        except BaseException as error:
            self._failure = error
        return None, 0

    def _take(self, batch: Batch) -> int:
        """Note that there is a batch; return the number of steps played in it, each counted once.

        Repeated entries, resets, padding and replayed columns do not count, and a column counts the
        same whatever its weight. Steps that the source has only stored count, too.
        """
        self.has_received = True
        self._has_batch()
        new = ~np.asarray(batch.unrolls.first)[self._overlap :]  # [T, B]
        return int((new & batch.played).sum()) + self._source.take_stored_steps()
