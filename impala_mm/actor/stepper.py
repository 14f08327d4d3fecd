"""Stepping environments, for an actor with its own network and for one that asks its learner.

Environments that broke during an unroll are rebuilt at its end; the unroll's last entry is then
the reset.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from impala_mm.environments.messages import describe_error
from impala_mm.environments.types import Environments, Episode, Step
from impala_mm.runtime import thread_names
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say

_MAX_FAULTS = 10  # environments rebuilt within the last 1,000 unrolls before the actor gives up


class TooManyFaults(Exception):
    """Environments fail again and again; the message has the last error."""


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
        except Exception as error:  # the environment stays broken: this is one more fault
            what = describe_error(error)
            self._environments.faults.append(f"environment {environment}, when rebuilt: {what}")
            return
        for name in ("reward", "terminated", "truncated", "observation", "first"):
            getattr(step, name)[environment] = getattr(reset, name)[0]


class FaultCounter:
    """A log of faults in groups of environments, which raises an error if there are too many."""

    def __init__(self, groups: Sequence[Environments], say: Say):
        self._groups, self._say = groups, say
        self._known = [0] * len(groups)
        self._unrolls, self._last = 0, ""
        self._at: list[int] = []  # the number of unrolls played before each fault

    def after_unroll(self) -> None:
        """Log the new faults of all groups; raise TooManyFaults if there are too many."""
        self._unrolls += 1
        for number, environments in enumerate(self._groups):
            new = environments.faults[self._known[number] :]
            self._known[number] += len(new)
            of = f"group {number}: " if len(self._groups) > 1 else ""
            for fault in new:
                self._last = f"{of}{fault}"
                self._say(f"{self._last}; it is rebuilt, and its unroll is dropped")
                self._at.append(self._unrolls)
        self._at = [at for at in self._at if at > self._unrolls - 1000]
        if len(self._at) >= _MAX_FAULTS:
            raise TooManyFaults(f"{len(self._at)} faults of environments, the last: {self._last}")
