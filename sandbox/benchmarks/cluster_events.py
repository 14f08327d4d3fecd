"""A discrete-event model of a run: learners in lockstep, actors, queues and links.

A process is a generator. It yields the time at which it continues, or a list in which it waits
until another process wakes it. `many_learners.py` fits the costs and prints predictions. The
analytic model of `plan.py`, `cluster_model.py`, has no queues, all-reduce latency or stragglers of
its own. No heavy module is imported.
"""

import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Generator
from typing import NamedTuple

Waiting = list["Process"]
Process = Generator["float | Waiting", None, None]
_EARLY_BYTES, _EARLY_TIME = 0.98, 1 / 3  # see simulated_algorithm.py: the last layers' gradients
_START_SHARE = 0.2  # of the simulated time, which does not count


class AllReduce(NamedTuple):
    """The cost of one all-reduce: a ring, in which each rank sends 2 (N - 1) / N of the bytes."""

    fixed_seconds: float
    rank_seconds: float  # for each rank on the same host: they compete for its cores
    byte_seconds: float  # for each byte that a rank sends
    hop_seconds: float = 0.0  # latency between hosts, 2 (N - 1) times

    def seconds(self, nbytes: float, ranks: int, ranks_per_host: int) -> float:
        """Return the time of an all-reduce of so many bytes."""
        hops = 2 * (ranks - 1)
        seconds = self.fixed_seconds + self.rank_seconds * ranks_per_host
        return seconds + hops * (self.hop_seconds + nbytes / ranks * self.byte_seconds)


class Run(NamedTuple):
    """A run; all sets of a learner and its actors are alike."""

    learners: int
    actors: int  # of all learners, which they are dealt to in turn
    update_seconds: float  # mean of the forward and backward pass
    overhead_seconds: float  # of an update besides these and the all-reduce
    allreduce: AllReduce
    gradient_bytes: float
    turn_seconds: float  # in which an actor plays the unrolls of a message
    batch_size: int = 1
    queue_capacity: int = 1
    envs: int = 1  # unrolls of a message
    jitter: float = 0.1  # largest relative deviation of the times of updates and turns
    message_bytes: float = 0.0
    receive_seconds: float = 0.0  # of a core of the learner, for a message
    parameter_bytes: float = 0.0
    serve_seconds: float = 0.0  # of a core of the learner, for a pull
    min_pull_secs: float = 0.0
    actors_per_host: int = 1
    link: float = math.inf  # bytes/s of a learner's host in each direction
    learners_per_host: int = 1


class Outcome(NamedTuple):
    """The rates and the shares of time of a simulated run."""

    updates_per_second: float
    wait_share: float  # of the learners: without unrolls
    exchange_share: float  # of the learners: waiting for the slowest and for the all-reduce
    ingest_share: float  # in which a learner's core receives unrolls and serves pulls
    link_share: float  # of a learner's link, in the direction that is used more
    lag: float  # updates since the policy that played an unroll, when it arrives


class _Resource:
    """A link or a core that serves one request after another."""

    def __init__(self) -> None:
        self.free_at = self.busy = 0.0

    def use(self, now: float, seconds: float) -> float:
        """Return when a request of this moment is served."""
        self.free_at = max(self.free_at, now) + seconds
        self.busy += seconds
        return self.free_at


class _Learner:
    """A learner's queue, its core that receives unrolls, and its link."""

    def __init__(self) -> None:
        self.queued = 0
        self.unrolls: Waiting = []  # waits for unrolls
        self.room: Waiting = []  # wait for room in the queue
        self.core, self.up, self.down = _Resource(), _Resource(), _Resource()


class _Host:
    """The newest policy that the actors of a host have, which they share."""

    def __init__(self) -> None:
        self.version, self.pulled_at, self.is_pulling = 0, -math.inf, False


class _Sender:
    """The sending of an actor's last unrolls."""

    def __init__(self) -> None:
        self.busy = False
        self.done: Waiting = []  # waits until they are sent


class Simulation:
    """One simulated run."""

    def __init__(self, run: Run, seed: int = 0):
        self.run, self._random = run, random.Random(seed)
        self._now, self._order = 0.0, itertools.count()
        self._due: list[tuple[float, int, Process]] = []
        self._learners = [_Learner() for _ in range(run.learners)]
        self._version = self._messages = self._lags = 0
        self._waited = self._exchanged = 0.0
        self._start(self._train())
        hosts = defaultdict[tuple[int, int], _Host](_Host)
        for number in range(run.actors):
            place, learner = divmod(number, run.learners)
            host = hosts[learner, place // run.actors_per_host]
            self._start(self._play(self._learners[learner], host))

    def simulate(self, seconds: float) -> Outcome:
        """Simulate so many seconds; the first ones, in which queues are filled, do not count."""
        self._run_until(begin := seconds * _START_SHARE)
        self._waited = self._exchanged = 0.0
        updates, self._messages, self._lags = self._version, 0, 0
        for each in self._learners:
            each.core.busy = each.up.busy = each.down.busy = 0.0
        self._run_until(seconds)
        elapsed, learner = seconds - begin, self._learners[0]
        return Outcome(
            (self._version - updates) / elapsed,
            self._waited / elapsed,
            self._exchanged / elapsed,
            learner.core.busy / elapsed,
            max(learner.up.busy, learner.down.busy) / elapsed,
            self._lags / max(self._messages, 1),
        )

    def _run_until(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            self._now, _, process = heapq.heappop(self._due)
            self._start(process)

    def _start(self, process: Process) -> None:
        """Let a process continue until it waits."""
        until = next(process, None)
        if isinstance(until, list):
            until.append(process)
        elif until is not None:
            heapq.heappush(self._due, (until, next(self._order), process))

    def _wake(self, waiting: Waiting, count: int = 1) -> None:
        """Let the first processes that wait continue."""
        for process in waiting[:count]:
            heapq.heappush(self._due, (self._now, next(self._order), process))
        del waiting[:count]

    def _around(self, mean: float) -> float:
        return mean * (1 + self._random.uniform(-self.run.jitter, self.run.jitter))

    def _train(self) -> Process:
        """Make updates once all learners have a batch."""
        run = self.run
        while True:
            begin = self._now
            for learner in self._learners:
                while learner.queued < run.batch_size:
                    yield learner.unrolls
                learner.queued -= run.batch_size
                self._wake(learner.room, run.batch_size)
            self._waited += self._now - begin
            passes = [self._around(run.update_seconds) for _ in self._learners]
            seconds = exchange_end(run, max(passes))
            self._exchanged += seconds - sum(passes) / len(passes)
            yield self._now + seconds + run.overhead_seconds
            self._version += 1

    def _play(self, learner: _Learner, host: _Host) -> Process:
        """Play unrolls, and send those of a turn while the next one is played."""
        yield self._random.uniform(0, self.run.turn_seconds)
        sender = _Sender()
        while True:
            version = host.version
            yield self._now + self._around(self.run.turn_seconds)
            while sender.busy:
                yield sender.done
            sender.busy = True
            self._start(self._send(learner, host, version, sender))

    def _send(self, learner: _Learner, host: _Host, version: int, sender: _Sender) -> Process:
        """Send the unrolls of a turn, wait for room in the queue, and pull a newer policy."""
        run = self.run
        yield learner.down.use(self._now, run.message_bytes / run.link)
        yield learner.core.use(self._now, run.receive_seconds)
        for _ in range(run.envs):
            # The next batch waits outside of the queue: it is prefetched.
            while learner.queued >= run.queue_capacity + run.batch_size:
                yield learner.room
            learner.queued += 1
            self._wake(learner.unrolls)
        self._messages, self._lags = self._messages + 1, self._lags + self._version - version
        due = self._now >= host.pulled_at + run.min_pull_secs
        if due and self._version > host.version and not host.is_pulling:
            host.pulled_at, host.is_pulling, newest = self._now, True, self._version
            yield learner.core.use(self._now, run.serve_seconds)
            yield learner.up.use(self._now, run.parameter_bytes / run.link)
            host.version, host.is_pulling = newest, False
        sender.busy = False
        self._wake(sender.done)


def exchange_end(run: Run, slowest: float) -> float:
    """Return when the gradients of an update are averaged; the slowest passes take `slowest`.

    Most of the bytes are ready early, and travel during the rest of the backward pass.
    """
    if run.learners == 1:
        return slowest

    def seconds(share: float) -> float:
        nbytes = run.gradient_bytes * share
        wire = 2 * (run.learners - 1) / run.learners * nbytes / run.link
        return wire + run.allreduce.seconds(nbytes, run.learners, run.learners_per_host)

    early = _EARLY_TIME * slowest + seconds(_EARLY_BYTES)
    return max(slowest, early) + seconds(1 - _EARLY_BYTES)
