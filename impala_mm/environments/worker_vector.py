"""E environments that step in worker processes, several at a time: those whose step is slow.

Every worker has a `GymVector` of some of the environments, so that results, seeds and faults are
those of a single `GymVector`. If a worker crashes, its environments are broken until a later step
starts another one.

gymnasium's AsyncVectorEnv has one process for each environment, and all of its environments end
with the first exception in one of them.
"""

import contextlib
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_mm.config import user_modules
from impala_mm.environments import nests
from impala_mm.environments.faults import (
    FAILURES,
    FaultElsewhere,
    Reopening,
    describe_end,
    frames_of_stack,
    make_fault,
    text_of,
)
from impala_mm.environments.gym_vector import blank_step
from impala_mm.environments.spaces import SpaceConversion
from impala_mm.environments.types import BadLevel, EnvironmentSpec, Episode, Fault, Step

_END_SECONDS = 2.0  # seconds that a worker has to close its environments
_ALIGNMENT = 64  # bytes of shared memory, a cache line
_CHECK_SECONDS = 1.0  # seconds between two checks whether a busy worker still runs
_STACK_SECONDS = 0.2  # seconds in which a worker writes where it is
_START = (
    "import json, signal, sys; signal.signal(signal.SIGINT, lambda *_: None); "
    "signal.signal(signal.SIGUSR2, lambda *_: None); "  # until the worker answers it (`stack`)
    "path, files = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from impala_mm.environments import worker; worker.run(*files)"
)
_vectors: "weakref.WeakSet[WorkerVector]" = weakref.WeakSet()


class Work(NamedTuple):
    """The environments of one worker, and how they are made."""

    level_name: str
    options: dict[str, Any]  # fields of `Options`
    total: int  # environments of the vector
    first: int  # number of this worker's first environment
    size: int  # environments of this worker
    seed: int
    renders: bool
    has_masks: bool  # whether the level offers masks of its actions
    imports: str  # what the vector's process has imported by --import

    @property
    def rows(self) -> slice:
        """The numbers of this worker's environments."""
        return slice(self.first, self.first + self.size)


def map_nest(like: Any, file: int) -> Any:
    """Return a nest like another one whose arrays are the memory of an open file, zeros at first.

    Every process has to pass a nest of the same shapes and types. Steps are as large as their
    observations, so that they are not sent through a pipe: a worker writes the rows of its
    environments where the vector reads them. The memory lasts as long as an array is used.
    """
    leaves = nests.flatten(like)
    starts = np.cumsum([0, *(-(-leaf.nbytes // _ALIGNMENT) * _ALIGNMENT for leaf in leaves)])
    size = max(int(starts[-1]), 1)
    if not (allocated := os.fstat(file).st_size):  # this process is the first
        os.ftruncate(file, size)
    elif allocated != size:
        raise ValueError(f"the shared memory has {allocated} bytes, and {size} were expected")
    memory = mmap.mmap(file, size)
    arrays = [
        np.ndarray(leaf.shape, leaf.dtype, memory, int(start))
        for leaf, start in zip(leaves, starts, strict=False)
    ]
    return nests.pack(like, arrays)


class Reply(NamedTuple):
    """The answer to a request."""

    result: Any = None
    faults: tuple[Fault, ...] = ()
    bad_level: str = ""  # the message of a BadLevel that was raised
    raised: Fault | None = None  # another exception


class WorkerDied(FaultElsewhere):
    """A worker process has ended, whose environments are all broken."""

    def __init__(self, work: Work, how: str, stack: str = ""):
        """Describe in `how` in which way it ended; `stack` is where it was in the user's code."""
        which = f"environment {work.first}"
        if work.size > 1:
            which = f"environments {work.first} to {work.rows.stop - 1}"
        text = f"{which} of {work.level_name}: the worker process {how}"
        place = stack or "It was in none of the user's functions, as far as is known."
        super().__init__(Fault(text, f"worker {how}\n{stack}", place))


class WorkerProcess:
    """A process that steps some environments of a vector."""

    def __init__(self, work: Work, memory_files: list[int]):
        """Start the process; `opened` waits until it has opened its environments."""
        self.work = work
        ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        files = [theirs.fileno(), life, self._stacks.fileno(), *memory_files]
        passed = json.dumps([sys.path, [*files[:3], memory_files]])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, passed], stdin=subprocess.DEVNULL, pass_fds=files
        )
        self._connection = Connection(os.dup(ours.fileno()))
        for socket_end in (ours, theirs):
            socket_end.close()
        os.close(life)
        self._is_waited_for = False  # the answer to a request was not received yet
        self.send(work)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, request: Any) -> None:
        """Send a request, which `receive` waits for; a process that has ended is noticed there."""
        self._is_waited_for = True
        with contextlib.suppress(OSError):
            self._connection.send(request)

    def receive(self) -> Reply:
        """Wait for the answer to the request; raise WorkerDied, BadLevel or FaultElsewhere."""
        try:
            # A program that an environment started may hold the connection open after a crash.
            while not self._connection.poll(_CHECK_SECONDS):
                if self._process.poll() is not None:
                    raise EOFError
            reply: Reply = self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        finally:
            self._is_waited_for = False
        if reply.bad_level:
            raise BadLevel(reply.bad_level)
        if reply.raised:
            raise FaultElsewhere(reply.raised)
        return reply

    @property
    def memory(self) -> int:
        """The process's memory in bytes, of which it shares some with other processes."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    @property
    def is_busy(self) -> bool:
        """Whether a request has no answer yet."""
        return self._is_waited_for and not self._connection.poll(0)

    def stack(self) -> list[str]:
        """Return where the process is in the user's code, as lines of a traceback."""
        try:
            begin = os.fstat(self._stacks.fileno()).st_size
            self._process.send_signal(signal.SIGUSR2)
            time.sleep(_STACK_SECONDS)
            return frames_of_stack(text_of(self._stacks, begin))
        except ValueError:  # another thread has closed it (`end`)
            return []

    def close(self) -> None:
        """Ask the process to close its environments and end."""
        with contextlib.suppress(OSError):
            self._connection.close()

    def end(self) -> None:
        """Wait for the process to end, after `close`; kill it if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        os.close(self._life)
        self._stacks.close()

    def _death(self) -> WorkerDied:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it closed the connection and still runs
            self._process.kill()
            code = self._process.wait()
        stack = frames_of_stack(text_of(self._stacks))
        return WorkerDied(self.work, describe_end(code), "\n".join(stack))


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
        self._files = [
            os.fdopen(os.memfd_create(f"impala_mm {what}"), "r+b", buffering=0)
            for what in ("steps", "actions")
        ]
        steps, actions = (file.fileno() for file in self._files)
        self._now = Step(*map_nest(blank_step(total, conversion), steps))
        shared = map_nest(spec.actions.zeros(total), actions)
        self._actions: list[np.ndarray] = nests.flatten(shared)
        self._finished: list[Episode] = []
        self._number = 0  # of the newest step or reset
        self._restarts = 0
        self._workers: list[WorkerProcess | None] = []
        self.picture_rate: float
        firsts, has_masks = np.cumsum([0, *sizes[:-1]]).tolist(), conversion.masks is not None
        self._works = [
            Work(
                spec.level_name,
                options,
                total,
                first,
                count,
                seed,
                renders,
                has_masks,
                imports=user_modules.imported(),
            )
            for first, count in zip(firsts, sizes, strict=True)
        ]
        self._reopenings = [Reopening() for _ in self._works]
        _vectors.add(self)
        try:
            self._workers += map(self._start, self._works)
            self.picture_rate, *_ = [self._answer(number) for number in range(len(sizes))]
        except BaseException:
            self.close()
            raise

    def reset(self) -> Step:
        """Reset all environments and drop their running episodes."""
        return self._play(True)

    def step(self, actions: Any) -> Step:
        """Step each environment, or reset it if its previous step ended an episode."""
        parts = nests.flatten(self.spec.actions.as_arrays(actions))
        for array, part in zip(self._actions, parts, strict=True):
            array[:] = part
        return self._play(False)

    def episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def judge_goals(
        self, environment: int, achieved: np.ndarray, desired: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what one environment says of goals (see `spaces.judge_goals`).

        Raises FaultElsewhere if its worker has ended: its environments are broken.
        """
        number = self._worker_of(environment)
        index = environment - self._works[number].first
        return self._answer(number, "judge_goals", index, achieved, desired)

    def picture(self) -> np.ndarray:
        """Return the picture that environment 0 draws, or else its observation as a picture."""
        return self._answer(0, "picture")

    def close(self) -> None:
        """End the workers."""
        workers = [worker for worker in self._workers if worker]
        self._workers = [None] * len(self._workers)
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.end()
        for file in self._files:
            file.close()

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
        return next(n for n, work in enumerate(self._works) if environment < work.rows.stop)

    def _start(self, work: Work) -> WorkerProcess:
        return WorkerProcess(work, [file.fileno() for file in self._files])

    def _answer(self, number: int, *request: Any) -> Any:
        """Return a worker's answer to a request, or to that of its start.

        If it has ended, its environments are broken, and WorkerDied is raised.
        """
        worker = self._workers[number]
        if worker is None:
            raise WorkerDied(self._works[number], "has ended")
        if request:
            worker.send(request)
        return self._receive(number)

    def _receive(self, number: int) -> Any:
        """Wait for the answer of a worker, take its faults and return its result."""
        worker = self._workers[number]
        assert worker
        try:
            reply = worker.receive()
        except WorkerDied:
            self._end(number)
            raise
        self.faults += reply.faults
        return reply.result

    def _end(self, number: int) -> None:
        """End a worker; its environments are broken until a later step starts another one."""
        worker, self._workers[number] = self._workers[number], None
        if worker:
            self._reopenings[number].failed(self._number)
            worker.close()
            worker.end()

    def _start_again(self, number: int) -> None:
        """Start a worker in place of one that has ended; its environments have new seeds."""
        self._restarts += 1
        words = np.random.SeedSequence([self._works[number].seed, self._restarts])
        seed = int(words.generate_state(1)[0] >> 1)
        self._workers[number] = self._start(self._works[number]._replace(seed=seed))
        try:
            self._answer(number)
        except FAILURES:
            self._end(number)
            raise

    def _play(self, resets: bool) -> Step:
        self._number += 1
        failures: dict[int, BaseException] = {}
        for number, work in enumerate(self._works):
            worker, is_shown = self._workers[number], self._now.fault[work.rows].all()
            if not worker and is_shown and self._reopenings[number].is_due(self._number):
                try:
                    self._start_again(number)
                except FAILURES as error:
                    failures[number] = error
        asked = {number: worker for number, worker in enumerate(self._workers) if worker}
        for worker in asked.values():
            worker.send(("play", resets))
        for number in asked:
            try:
                episodes: list[Episode] = self._receive(number)
            except WorkerDied as died:
                failures[number] = died
                continue
            first = self._works[number].first
            self._finished += [
                episode._replace(environment=first + episode.environment) for episode in episodes
            ]
        for number, failure in failures.items():
            rows = self._works[number].rows
            fault = make_fault(f"environment {rows.start} of {self.spec.level_name}", failure)
            if isinstance(failure, FaultElsewhere):
                fault = failure.fault
            self.faults += [fault._replace(environment=i) for i in range(rows.start, rows.stop)]
        for work, worker in zip(self._works, self._workers, strict=True):
            if worker is None:
                self._now.blank(work.rows)
        return self._now


def find_hang() -> tuple[int, list[str]] | None:
    """Return the number and the stack of a worker process that is in the user's code."""
    for vector in list(_vectors):
        for worker in vector.busy_workers():
            if stack := worker.stack():
                return worker.pid, stack
    return None
