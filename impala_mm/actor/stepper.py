"""Stepping environments, for an actor with its own network and for one that asks its learner.

Environments that broke during an unroll are rebuilt at its end; the unroll's last entry is then
the reset.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from impala_mm.environments import nests
from impala_mm.environments.faults import FAILURES, FaultLog, indented, make_fault
from impala_mm.environments.types import Environments, Episode, Fault, Step
from impala_mm.runtime import thread_names
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say

_MAX_REBUILDS = 5  # rebuilds after which an environment should have completed a step
# Consecutive unrolls of all environments that all had faults, before the actor gives up.
_MAX_BROKEN_UNROLLS = 10


class TooManyFaults(Exception):
    """No environment works any more; the message has the last error."""


class DescriptorsClosed(Exception):
    """The environments have closed this process's files and sockets: it reaches no learner."""


class NothingPlayed(TooManyFaults):
    """No environment of this process has ever worked, so that a restart would not help."""

    def __init__(self, what: str, fault: Fault):
        """Describe in `what` what no environment has done; `fault` is the first one."""
        super().__init__(f"{what}; the first fault: {fault.text}\n{indented(fault)}")
        self.reason, self.fault = what, fault


class EnvironmentStepper:
    """A stepper of E environments that step together, in unrolls of T steps."""

    def __init__(
        self, environments: Environments, length: int, heartbeat: Heartbeat, threaded: bool = False
    ):
        """Step `environments` in unrolls of `length` steps.

        With `threaded`, they step in a thread, so that the caller can do other work.
        """
        self._pool: ThreadPoolExecutor | None = None
        if threaded:
            self._pool = ThreadPoolExecutor(1, "stepping", thread_names.name_thread, ("stepping",))
        self._result: Callable[[], Step]  # waits for the step that was started
        self._finished: list[Episode] = []
        self._environments, self._length, self._heartbeat = environments, length, heartbeat
        self._repeats = environments.spec.action_repeats
        self._steps = 0  # in this unroll
        self._broken = np.zeros(
            [], bool
        )  # [E]: had a fault in this unroll; [] before its first step
        self.seconds = 0.0  # total duration of all steps
        self._open_file = _open_file()

    def reset(self) -> Step:
        """Reset all environments and begin an unroll."""
        self._steps, self._broken = 0, np.zeros([], bool)
        return self._environments.reset()

    def step(self, actions: Any) -> Step:
        """Step each environment by its action, a nest of [E, ...], and return the step."""
        self.start_step(actions)
        return self.finish_step()

    def start_step(self, actions: Any) -> None:
        """Start a step by actions, a nest of [E, ...]; `finish_step` returns it."""
        if self._pool:
            self._result = self._pool.submit(self._step, actions).result
        else:
            self._result = partial(self._step, actions)

    def finish_step(self) -> Step:
        """Wait for the step that was started and return it; its arrays are [E, ...].

        In an unroll's last step, environments that had a fault are rebuilt and show their resets.
        """
        step = self._result()
        self._heartbeat.frames += int((~step.first).sum()) * self._repeats
        self._heartbeat.beat()
        self._broken = self._broken | step.fault
        self._steps = (self._steps + 1) % self._length
        if self.between_unrolls:
            for environment in np.flatnonzero(self._broken).tolist():
                self._rebuild(environment, step)
            self._broken = np.zeros([], bool)
        self._finished += self._environments.episodes()
        _check_descriptors(self._open_file)
        return step

    @property
    def between_unrolls(self) -> bool:
        """Whether the last step ended an unroll."""
        return self._steps == 0

    def episodes(self) -> np.ndarray:
        """Return the episodes that ended since the last call.

        Each row of float32 [K, 3] is (1 for a complete game else 0, return, steps).
        """
        finished, self._finished = self._finished, []
        return np.array(
            [(e.whole_game, e.episode_return, e.length) for e in finished], np.float32
        ).reshape([-1, 3])

    def close(self) -> None:
        """Wait for a running step and end the thread."""
        if self._pool:
            self._pool.shutdown()

    def _step(self, actions: Any) -> Step:
        begin = time.perf_counter()
        step = self._environments.step(actions)
        self.seconds += time.perf_counter() - begin
        return step

    def _rebuild(self, environment: int, step: Step) -> None:
        try:
            reset = self._environments.rebuild(environment)
        except FAILURES as error:  # the environment stays broken: this is one more fault
            where = f"environment {environment}, when rebuilt"
            self._environments.faults.append(make_fault(where, error, environment))
            return
        for name in ("reward", "terminated", "truncated", "observation", "first", "mask"):
            nests.copy_row(getattr(step, name), environment, getattr(reset, name))


@functools.cache
def _open_file() -> tuple[int, os.stat_result]:
    """Open a file that this process never closes; return its descriptor and what it is."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    return descriptor, os.fstat(descriptor)


def _check_descriptors(open_file: tuple[int, os.stat_result]) -> None:
    """Raise DescriptorsClosed if an environment has closed this file, and so probably all.

    TensorFlow's calls to the learner would wait for ever: even their deadlines need its sockets.
    """
    descriptor, status = open_file
    with contextlib.suppress(OSError):  # it is closed
        if os.path.samestat(os.fstat(descriptor), status):
            return
    raise DescriptorsClosed(
        "an environment has closed files and sockets of this process that it did not open, such as "
        "by os.closerange: the actor cannot reach its learner any more"
    )


class FaultCounter:
    """A watch over the faults in an actor's groups of environments.

    It logs them, and raises an error once the environments produce nothing but faults. As long as
    some unrolls are complete, faults are counted and playing continues.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Environments, int]],
        heartbeat: Heartbeat,
        say: Say,
        tell: Callable[[Fault], None] = lambda fault: None,
    ):
        """Watch `groups`: each consists of environments that step together, and their number.

        `heartbeat` counts the frames of their steps. `tell` is called with the first fault of each
        kind, after it was logged through `say`.
        """
        self._groups, self._heartbeat = groups, heartbeat
        self._log = FaultLog(say, tell)
        self._size = sum(size for _, size in groups)
        self._rebuilds = 0
        self._has_complete_unroll = False
        self._broken_unrolls = 0  # unrolls in a row that no environment has completed
        self._first: Fault | None = None
        self._last: Fault
        self.new = 0  # faults in the last unroll

    def after_unroll(self, complete: int | None = None) -> None:
        """Take and log the new faults of all groups; raise TooManyFaults if nothing else comes.

        `complete` is the number of environments that completed the unroll; None: those without a
        new fault.
        """
        faults: list[Fault] = []
        broken = 0
        for number, (environments, size) in enumerate(self._groups):
            new = list(environments.faults)
            del environments.faults[: len(new)]  # a group's thread may add others
            of = f"group {number}: " if len(self._groups) > 1 else ""
            faults += [fault._replace(text=f"{of}{fault.text}") for fault in new]
            broken += _count_broken(new, size)
        for fault in faults:
            self._first = self._first or fault
            self._last = fault
            self._log.add(fault, "it is rebuilt, and its unroll is dropped")
        self._log.say_counts()
        self.new = len(faults)
        self._check(self._size - broken if complete is None else complete)
        self._rebuilds += broken

    def say_counts(self) -> None:
        """Log how many faults were counted since the last time; call it at the end."""
        self._log.say_counts(now=True)

    def _check(self, complete: int) -> None:
        """Raise TooManyFaults if the environments produce nothing but faults."""
        self._broken_unrolls = 0 if complete else self._broken_unrolls + 1
        self._has_complete_unroll |= complete > 0
        no_step = not self._heartbeat.frames and self._rebuilds >= _MAX_REBUILDS
        if not self._first or not (no_step or self._broken_unrolls >= _MAX_BROKEN_UNROLLS):
            return
        self.say_counts()
        if self._has_complete_unroll:
            raise TooManyFaults(
                f"every environment failed in each of the last {self._broken_unrolls} unrolls; the "
                f"last fault: {self._last.text}"
            )
        what = "a single step" if no_step else "an unroll without a fault"
        raise NothingPlayed(
            f"no environment of this actor has completed {what} after {self._rebuilds} rebuilds",
            self._first,
        )


def _count_broken(faults: Sequence[Fault], size: int) -> int:
    """Return how many of `size` environments had one of these faults."""
    if any(fault.environment is None for fault in faults):
        return size
    return len({fault.environment for fault in faults})
