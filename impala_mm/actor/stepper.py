"""Stepping environments, for an actor with its own network and for one that asks its learner."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from impala_mm.data.episodes import to_rows
from impala_mm.environments.types import Environments, Episode, Step
from impala_mm.runtime import lifecycle
from impala_mm.runtime.heartbeat import Heartbeat


class DescriptorsClosed(Exception):
    """The environments have closed this process's files and sockets: it reaches no learner."""


def numbered(
    groups: Iterable[tuple[Environments, int]],
) -> Iterator[tuple[int, int, Environments, int]]:
    """Yield (group, actor's number of its first environment, environments, their number)."""
    begin = 0
    for group, (environments, size) in enumerate(groups):
        yield group, begin, environments, size
        begin += size


class EnvironmentStepper:
    """A stepper of E environments that step together, in unrolls of T steps."""

    def __init__(
        self,
        environments: Environments,
        length: int,
        heartbeat: Heartbeat,
        first: int = 0,
        threaded: bool = False,
    ):
        """Step `environments` in unrolls of `length` steps.

        `first` is the actor's number of the first one. With `threaded`, they step in a thread, so
        that the caller can do other work.
        """
        self._pool: ThreadPoolExecutor | None = None
        if threaded:
            self._pool = ThreadPoolExecutor(1, "stepping", lifecycle.name_thread, ("stepping",))
        self._result: Callable[[], Step]  # waits for the step that was started
        self._finished: list[Episode] = []
        self._environments, self._length, self._heartbeat = environments, length, heartbeat
        self._first = first
        self._repeats = environments.spec.action_repeats
        self._steps = 0  # in this unroll
        self._faulty = np.zeros(
            [], bool
        )  # [E]: had a fault in this unroll; [] before its first step
        self._open_file = _open_file()

    def reset(self) -> Step:
        """Reset all environments and begin an unroll."""
        self._steps = 0
        return self._environments.reset()

    def step(self, actions: Any) -> Step:
        """Step each environment by its action, a nest of [E, ...], and return the step."""
        self.start_step(actions)
        return self.finish_step()

    def start_step(self, actions: Any) -> None:
        """Start a step by actions, a nest of [E, ...]; `finish_step` returns it."""
        if self._pool:
            self._result = self._pool.submit(self._environments.step, actions).result
        else:
            self._result = functools.partial(self._environments.step, actions)

    def finish_step(self) -> Step:
        """Wait for the step that was started and return it; its arrays are [E, ...]."""
        step = self._result()
        self._heartbeat.frames += int((~step.first).sum()) * self._repeats
        self._heartbeat.beat()
        self._faulty = step.fault | (self._faulty & (not self.between_unrolls))
        self._steps = (self._steps + 1) % self._length
        self._finished += self._environments.episodes()
        _check_descriptors(self._open_file)
        return step

    @property
    def unbroken(self) -> int:
        """The number of environments that had no fault in this unroll."""
        return int((~self._faulty).sum())

    @property
    def between_unrolls(self) -> bool:
        """Whether the last step ended an unroll."""
        return self._steps == 0

    def episodes(self) -> np.ndarray:
        """Return the episodes that ended since the last call, as `to_rows` does.

        The number of an environment is that in the actor.
        """
        finished, self._finished = self._finished, []
        return to_rows(finished, self._first)

    def close(self) -> None:
        """Wait for a running step and end the thread."""
        if self._pool:
            self._pool.shutdown()


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
