"""All learners make the same steps: each step is agreed on before it is made.

    source ---batch---> Lockstep ---AgreedStep---> learner._step
                           |
             one small sum over learners per step: who stops, how many steps, what return

`next` gives a learner its batch once every learner has one. While a step runs the next is agreed
on, so agreeing costs nothing where batches are plenty. A learner that is to stop, for a signal or a
source that failed, needs no batch to say so: it answers for the next step, and all end after the
same. A learner that is alone has nobody to agree with, and no thread for it.
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
from impala_mm.learner.batch_source import BatchSource
from impala_mm.runtime import thread_names


class AgreedStep(NamedTuple):
    """One step of all learners."""

    batch: Batch | None  # this learner's own; None: all stop instead
    steps: int  # steps of the environments in the batches of all learners
    own_steps: int  # and in this one's
    episode_return: float  # mean raw return as rank 0 knows it; NaN before it does
    ready: float  # time.monotonic() when this learner had its batch


class Lockstep:
    """The next step of all learners, agreed on ahead by a thread of its own."""

    def __init__(
        self,
        source: BatchSource,
        group: LearnerGroup,
        overlap: int,
        mean_return: Callable[[], float],
    ):
        self._source, self._group, self._overlap = source, group, overlap
        self._mean_return = mean_return  # asked on rank 0
        self._stopping = threading.Event()
        self._agreed: queue.Queue[AgreedStep] = queue.Queue(maxsize=1)
        self._failure: BaseException | None = None
        self.ready = math.inf  # time.monotonic() when it had the batch it holds; infinite: it waits
        if group.size > 1:
            threading.Thread(target=self._run, name="lockstep", daemon=True).start()

    def stop(self) -> None:
        """All learners are to stop, after a step or two."""
        self._stopping.set()

    def next(self, timeout: float) -> AgreedStep | None:
        """The next step, or None where it is not agreed on within `timeout` seconds."""
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
        """The next step of the only learner."""
        stops = self._stopping.is_set()
        batch = self._source.next(0.0 if stops else timeout)  # asked anyway: it may have failed
        if stops:
            return AgreedStep(None, 0, 0, math.nan, time.monotonic())
        if batch is None:
            return None
        steps = self._steps(batch)
        return AgreedStep(batch, steps, steps, self._mean_return(), time.monotonic())

    def _run(self) -> None:
        thread_names.name_thread("lockstep")
        going = True
        while going:
            agreed = self._agree()
            going = agreed.batch is not None
            self._agreed.put(agreed)
            self._agreed.join()  # the next is asked for when this one is taken
            self.ready = math.inf

    def _agree(self) -> AgreedStep:
        batch, own_steps = self._next_batch()
        self.ready = ready = time.monotonic()
        mean_return = self._mean_return() if self._group.rank == 0 else math.nan
        told = [
            batch is None,
            own_steps,
            not math.isnan(mean_return),
            0.0 if math.isnan(mean_return) else mean_return,
        ]
        try:
            total = self._group.sum(tf.constant(told, tf.float64), "lockstep")
        except BaseException as error:  # a learner is gone
            self._failure = self._failure or error
            return AgreedStep(None, 0, 0, math.nan, ready)
        stopping, steps, is_known, episode_return = total.numpy().tolist()
        return AgreedStep(
            batch=None if stopping else batch,
            steps=round(steps),
            own_steps=own_steps,
            episode_return=episode_return if is_known else math.nan,
            ready=ready,
        )

    def _next_batch(self) -> tuple[Batch | None, int]:
        """This learner's, and its steps; None when it is to stop, or cannot go on."""
        try:
            while not self._stopping.is_set():
                batch = self._source.next(timeout=0.2)
                if batch is not None:
                    return batch, self._steps(batch)
        except BaseException as error:
            self._failure = error
        return None, 0

    def _steps(self, batch: Batch) -> int:
        """Those that count in a batch: not what was repeated, no resets, no padding."""
        new = ~np.asarray(batch.unrolls.first)[self._overlap :]  # [T, B]
        return int((new * np.asarray(batch.weight)).sum())
