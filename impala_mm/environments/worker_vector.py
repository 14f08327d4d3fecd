"""E environments that step in worker processes, several at a time: those whose step is slow.

Every worker has a `GymVector` of some of the environments, so that results, seeds and faults are
those of a single `GymVector`. If a worker crashes, its environments are broken until they are
rebuilt, which starts a new one.

gymnasium's AsyncVectorEnv has one process for each environment, and all of its environments end
with the first exception in one of them.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from impala_mm.config import user_modules
from impala_mm.environments import nests
from impala_mm.environments.faults import FaultElsewhere
from impala_mm.environments.gym_vector import blank_step
from impala_mm.environments.spaces import SpaceConversion
from impala_mm.environments.step_memory import SharedNest
from impala_mm.environments.types import EnvironmentSpec, Episode, Fault, Step
from impala_mm.environments.worker import Work
from impala_mm.environments.worker_process import WorkerDied, WorkerProcess

_vectors: "weakref.WeakSet[WorkerVector]" = weakref.WeakSet()


class WorkerVector:
    """An implementation of `Environments` by worker processes.

    `reset` and `step` return the same arrays each time; they are valid until the next call of
    either.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        conversion: SpaceConversion,
        options: dict[str, Any],
        sizes: Sequence[int],
        seed: int,
        renders: bool = False,
    ):
        """Start a worker for each of `sizes`, which are numbers of environments.

        Environment i is seeded with `seed` + i. `options` are fields of `Options`.
        """
        self.spec = spec
        self.faults: list[Fault] = []
        total = sum(sizes)
        self._steps = SharedNest(blank_step(total, conversion))
        self._now = Step(*self._steps.nest)
        self._actions = SharedNest(spec.actions.zeros(total))
        self._finished: list[Episode] = []
        self._rebuilds = 0
        self._workers: list[WorkerProcess | None] = []
        firsts, has_masks = np.cumsum([0, *sizes[:-1]]).tolist(), conversion.masks is not None
        self._works = [
            Work(
                *(spec.level_name, options, total, first, count, seed, renders, has_masks),
                opens=True,
                imports=user_modules.imported(),
            )
            for first, count in zip(firsts, sizes, strict=True)
        ]
        opened: list[float] = []  # the picture rate of each worker's environments
        _vectors.add(self)
        try:
            self._workers += map(self._start, self._works)
            for number in range(len(sizes)):
                opened.append(self._receive(number))
        except WorkerDied as died:
            self.close()
            raise FaultElsewhere(self._fault_of(self._works[len(opened)], died)) from None
        except BaseException:
            self.close()
            raise
        self.picture_rate = opened[0]

    def reset(self) -> Step:
        """Reset all environments and drop their running episodes."""
        return self._play(True)

    def step(self, actions: Any) -> Step:
        """Step each environment, or reset it if its previous step ended an episode."""
        given = nests.flatten(self.spec.actions.as_arrays(actions))
        for array, each in zip(self._actions.arrays, given, strict=True):
            array[:] = each
        return self._play(False)

    def rebuild(self, environment: int) -> Step:
        """Replace one environment by a new one, in a new worker if its own has ended."""
        number = self._worker_of(environment)
        work = self._works[number]
        self._rebuilds += 1
        try:
            if self._workers[number] is None:
                self._workers[number] = self._start(work._replace(opens=False))
                self._receive(number)
            worker = self._workers[number]
            assert worker
            worker.send(("rebuild", environment - work.first, self._rebuilds - 1))
            return self._receive(number)
        except WorkerDied as died:
            self._lose(number)
            raise FaultElsewhere(self._fault_of(work, died)) from None

    def episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def judge_goals(
        self, environment: int, achieved: np.ndarray, desired: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what one environment says of goals (see `goals.judge`).

        Raises FaultElsewhere if its worker has ended: its environments are broken.
        """
        number = self._worker_of(environment)
        worker, work = self._workers[number], self._works[number]
        try:
            if worker is None:
                raise WorkerDied("has ended", "")
            worker.send(("judge_goals", environment - work.first, achieved, desired))
            return self._receive(number)
        except WorkerDied as died:
            self._lose(number)
            raise FaultElsewhere(self._fault_of(work, died)) from None

    def picture(self) -> np.ndarray:
        """Return the picture that environment 0 draws, or else its observation as a picture."""
        worker = self._workers[0]
        assert worker
        worker.send(("picture",))
        return self._receive(0)

    def close(self) -> None:
        """End the workers."""
        workers = [worker for worker in self._workers if worker]
        self._workers = [None] * len(self._workers)
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.end()
        for shared in (self._steps, self._actions):
            shared.close()

    def describe(self) -> str:
        """Return in words how many workers there are, and their memory."""
        workers = [worker for worker in self._workers if worker]
        size = sum(worker.memory for worker in workers) / 1e6
        return f"{len(workers)} worker process{'es' * (len(workers) > 1)} ({size:.0f} MB)"

    def busy_workers(self) -> list[WorkerProcess]:
        """Return the workers whose answer has not come yet."""
        return [worker for worker in self._workers if worker and worker.is_busy]

    def _worker_of(self, environment: int) -> int:
        """Return the number of the worker that has this environment."""
        return next(n for n, work in enumerate(self._works) if environment < _end(work))

    def _start(self, work: Work) -> WorkerProcess:
        return WorkerProcess(work, [self._steps.number, self._actions.number])

    def _receive(self, number: int) -> Any:
        """Wait for the answer of a worker, take its faults and return its result."""
        worker = self._workers[number]
        assert worker
        reply = worker.receive()
        self.faults += reply.faults
        return reply.result

    def _play(self, resets: bool) -> Step:
        for worker in self._workers:
            if worker:
                worker.send(("play", resets))
        for number, work in enumerate(self._works):
            if self._workers[number] is None:
                self._blank(work)
                continue
            try:
                episodes: list[Episode] = self._receive(number)
            except WorkerDied as died:
                self._lose(number)
                self._blank(work)
                fault = self._fault_of(work, died)
                self.faults += [
                    fault._replace(environment=i) for i in range(work.first, _end(work))
                ]
                continue
            self._finished += [
                each._replace(environment=work.first + each.environment) for each in episodes
            ]
        return self._now

    def _lose(self, number: int) -> None:
        """Forget a worker that has ended."""
        if worker := self._workers[number]:
            worker.close()
            worker.end()
        self._workers[number] = None

    def _blank(self, work: Work) -> None:
        """Write the rows of a worker's environments as those of broken ones."""
        for array in self._steps.rows(work.first, work.size):
            array.fill(0)
        mine = slice(work.first, _end(work))
        for array in (self._now.first, self._now.fault, *nests.flatten(self._now.mask)):
            array[mine] = True

    def _fault_of(self, work: Work, died: WorkerDied) -> Fault:
        """Return the fault of a worker's environments, after the worker has ended."""
        which = (
            f"environments {work.first} to {_end(work) - 1}"
            if work.size > 1
            else (f"environment {work.first}")
        )
        text = f"{which} of {self.spec.level_name}: the worker process {died.how}"
        place = died.stack or "It was in none of the user's functions, as far as is known."
        return Fault(text, f"worker {died.how}\n{died.stack}", place)


def find_hang() -> tuple[int, list[str]] | None:
    """Return the number and the stack of a worker process that is in the user's code."""
    for vector in list(_vectors):
        for worker in vector.busy_workers():
            if stack := worker.stack():
                return worker.pid, stack
    return None


def _end(work: Work) -> int:
    return work.first + work.size
