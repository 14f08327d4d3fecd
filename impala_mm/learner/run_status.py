"""The status of a run as a learner knows it: the newest reports of all, and its own.

`monitor` asks it. The reports of all learners are exchanged by `learner_reports`.
"""

import math
import time
from collections.abc import Callable

from impala_mm.algorithms.contract import AlgorithmMistake
from impala_mm.config.settings import Config
from impala_mm.distributed.consistency import VariablesDiffer
from impala_mm.distributed.group import LearnerGroup
from impala_mm.learner.learner import Learner
from impala_mm.learner.learner_reports import EndlessUpdate, LearnerReport
from impala_mm.learner.train_step import NotFinite, NothingCompiled
from impala_mm.records.host_use import HostUse
from impala_mm.records.metrics import Meter, MetricsAggregator
from impala_mm.runtime import starter
from impala_mm.runtime.machine import GpuWatch, IdleCores, ProcessUse
from impala_mm.runtime.starter import process_rank
from impala_mm.transport.server import Server

# Failures that all learners have at the same step.
COMMON_FAILURES = (AlgorithmMistake, NotFinite, VariablesDiffer, NothingCompiled)


class RunStatus:
    """The newest report of each learner, and what follows from all of them."""

    def __init__(
        self,
        config: Config,
        group: LearnerGroup,
        learner: Learner,
        server: Server,
        aggregator: MetricsAggregator,
    ):
        """Know nothing of the others yet; the measurements in reports go to `aggregator`."""
        self._config, self._group, self._learner, self._server = config, group, learner, server
        self._aggregator = aggregator
        self.reports: list[LearnerReport] = []  # by rank
        self.reported_at = math.inf  # time.monotonic() of the newest reports
        self.no_unroll_comes = ""  # why no unroll can come any more to this learner
        self.endless = ""  # why the update that is being made will never end
        self._endless_update = EndlessUpdate()
        self._wait_share = 0.0  # share of its time that this learner waits for unrolls
        self._waited, self._timed = 0.0, 0.0  # the meter's seconds at the last report
        self._cores, self._use, self._gpus = IdleCores(), ProcessUse(), GpuWatch()
        if process_rank().local_rank == 0:
            self._gpus.start()

    def report(self) -> LearnerReport:
        """Return this learner's own report."""
        learner, meter = self._learner, self._learner.meter
        done = not learner.is_alive()  # asked before the reading, so that the last one is complete
        if self._group.rank == 0:  # its own reading need not wait for the exchange
            self._aggregator.collect(0, meter)
            reading = Meter().take_reading()
        else:
            reading = meter.take_reading()
        waited, timed = meter.waited, meter.timed
        if timed - self._timed > 0.2:
            # Averaged over some seconds, since one late step says little.
            share = (waited - self._waited) / (timed - self._timed)
            self._wait_share += 0.4 * (share - self._wait_share)
            self._waited, self._timed = waited, timed
        return LearnerReport(
            reading=reading,
            load=self._server.load(self._wait_share),
            actors_elsewhere=self._server.actors.on_other_hosts(),
            idle_cores=self._cores.idle(),
            hosts=self._hosts(),
            dropped=self._server.dropped,
            numbered=self._server.numbers.used,
            round_progress=self._server.rounds.progress if self._server.rounds else (0, 0),
            filling=learner.filling(),
            padded=self._server.rounds.padded if self._server.rounds else 0,
            faults=self._server.environment_faults,
            has_received=self._server.has_received or learner.has_received,
            gave_up=self._server.failures.gave_up,
            mistakes=self._server.mistakes,
            no_unroll_comes=self.no_unroll_comes,
            end_reason=learner.end_reason,
            in_update=0 if learner.variables_complete else learner.updates + 1,
            longest_update=learner.longest_update,
            error=learner.end_reason if learner.failure else "",
            done=done,
        )

    def _hosts(self) -> list[HostUse]:
        """Return what this learner and its actors use; also its host's GPUs, if it is the first."""
        own = HostUse(starter.host_name(), *self._use.newest(), self._gpus.newest)
        return [
            own,
            *(HostUse(host, *use) for host, use in self._server.actors.use_by_host().items()),
        ]

    def receive(self, reports: list[LearnerReport]) -> None:
        """Take the reports of all learners."""
        self.reports, self.reported_at = reports, time.monotonic()
        self.endless = self._endless_update.why_endless(reports)
        if self._config.learner_assignment == "balance":
            self._server.actors.loads = [report.load for report in reports]
        for rank, report in enumerate(reports):
            numbers = self._server.numbers
            numbers.most = max(numbers.most, report.numbered)
            self._aggregator.merge(rank, report.reading)

    def why_lost(self) -> str:
        """Return why training cannot continue although this learner has not failed, or ""."""
        return self.endless or self.other_learners_failure()

    def other_learners_failure(self) -> str:
        """Return why another learner failed; empty if none did, or if all failed alike."""
        if isinstance(self._learner.failure, COMMON_FAILURES):
            return ""
        for rank, report in enumerate(self.reports):
            if report.error and rank != self._group.rank:
                return f"learner {rank} failed: {report.error}"
        return ""

    @property
    def has_received(self) -> bool:
        """Whether a learner has received a complete unroll, or a batch from its own source."""
        own = self._server.has_received or self._learner.has_received
        return own or any(report.has_received for report in self.reports)

    def filling(self) -> tuple[int, int]:
        """Return the unrolls in the learners' replays, and those that first updates need."""
        each = [report.filling for report in self.reports]
        return sum(have for have, _ in each), sum(needed for _, needed in each)

    def gave_up(self) -> dict[int, str]:
        """Return the actors of all learners that gave up, and why."""
        found: dict[int, str] = {}
        for report in self.reports:
            found |= report.gave_up
        return found | self._server.failures.gave_up

    def mistakes(self) -> dict[int, str]:
        """Return the actors of all learners that sent invalid unrolls, and what was wrong."""
        found: dict[int, str] = {}
        for report in self.reports:
            found |= report.mistakes
        return found | self._server.mistakes

    def num_actors(self) -> int:
        """Return the number of connected actors of all learners."""
        others = [r for rank, r in enumerate(self.reports) if rank != self._group.rank]
        return len(self._server.actors.heard) + sum(r.load.actors for r in others)

    def actor_counts(self) -> dict[str, float]:
        """Return the metrics of the actors of all learners: their number, and idle cores."""
        others = [r for rank, r in enumerate(self.reports) if rank != self._group.rank]
        idle = [report.idle_cores for report in self.reports]
        known = [cores for cores in idle if cores is not None]
        return {
            "actors": self.num_actors(),
            "actors_elsewhere": self._server.actors.on_other_hosts()
            + sum(r.actors_elsewhere for r in others),
        } | ({"idle_cores": max(known)} if len(known) == len(idle) > 0 else {})


class RunTime:
    """The seconds of training, including those before a resume."""

    def __init__(self, has_received: Callable[[], bool]):
        """Count from when `has_received` says that a learner has an unroll."""
        self._has_received = has_received
        self.seconds = 0.0
        self.counted = 0.0  # those since the first unroll of each start, for --max_seconds
        self.begin()

    def begin(self) -> None:
        """Begin to count this start's seconds after those that are known."""
        self._began, self._before = time.monotonic(), self.seconds
        self._received_at, self._counted_before = math.inf, self.counted

    def count(self, now: float) -> None:
        """Count the seconds until `now`, a time.monotonic()."""
        self.count_all(now)
        if self._has_received():
            self._received_at = min(self._received_at, now)
            self.counted = self._counted_before + now - self._received_at

    def count_all(self, now: float) -> None:
        """Count the seconds until `now`, but none towards --max_seconds: training has ended."""
        self.seconds = self._before + now - self._began
