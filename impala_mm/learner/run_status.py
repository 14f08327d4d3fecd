"""The status of a run as a learner knows it: the newest reports of all, its own, and its time.

What is done beside the training (`monitor`) reads it. The reports are exchanged by
`learner_reports`.
"""

import math
import time
from collections.abc import Iterable, Mapping

from impala_mm.algorithms.contract import AlgorithmMistake
from impala_mm.algorithms.features.guide import Guidance
from impala_mm.config.environment_flags import read_opponents
from impala_mm.distributed.group import VariablesDiffer
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.learner.learner import Learner
from impala_mm.learner.learner_reports import EndlessUpdate, LearnerReport, SilentLearners
from impala_mm.learner.lockstep import MeanReturns
from impala_mm.learner.train_step import NotFinite, NothingCompiled
from impala_mm.records.host_use import HostUse
from impala_mm.records.metrics import Meter, MetricsAggregator
from impala_mm.runtime import heartbeat, starter
from impala_mm.runtime.log import Say
from impala_mm.runtime.machine import GpuWatch, IdleCores, ProcessUse
from impala_mm.runtime.starter import process_rank

# Failures that all learners have at the same step.
COMMON_FAILURES = (AlgorithmMistake, NotFinite, VariablesDiffer, NothingCompiled)


class RunStatus:
    """The newest report of each learner, what follows from all of them, and the seconds trained."""

    def __init__(
        self,
        learner: Learner,
        levels: Mapping[str, EnvironmentSpec],
        say: Say,
        silent: SilentLearners | None = None,
    ):
        """Know nothing of the others yet; `silent` finds out which of them do not answer."""
        self.learner, self.say, self._silent = learner, say, silent
        self.config, self.group, self.server = learner.config, learner.group, learner.server
        self.aggregator = MetricsAggregator(
            {name: spec.scores for name, spec in levels.items()},
            self.group.size,
            keeps_games=self.config.log_games and self.group.rank == 0,
            opponents=[*read_opponents(self.config.opponents)],
        )
        self.heartbeat = heartbeat.of_learner()
        # How often a teacher acts in games; None: it does not, or no longer.
        self._guidance: Guidance | None = learner.algorithm.features.get(Guidance)
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
        self.seconds = 0.0  # of training, since the first unroll of each start of the run
        self.begin_time()

    def report(self) -> LearnerReport:
        """Return this learner's own report."""
        learner, server, meter = self.learner, self.server, self.learner.meter
        done = not learner.is_alive()  # asked before the reading, so that the last one is complete
        if self.group.rank == 0:  # its own reading need not wait for the exchange
            self.aggregator.collect(0, meter)
            reading = Meter().take_reading()
        else:
            reading = meter.take_reading()
        waited, timed = meter.waited, meter.timed
        if timed - self._timed > 0.2:
            # Averaged over some seconds, since one late step says little.
            share = (waited - self._waited) / (timed - self._timed)
            self._wait_share += 0.4 * (share - self._wait_share)
            self._waited, self._timed = waited, timed
        # What it uses itself, with its host's GPUs if it is the first one there; then its actors.
        own_use = HostUse(starter.host_name(), *self._use.newest(), self._gpus.newest)
        by_host = server.actors.use_by_host().items()
        return LearnerReport(
            reading=reading,
            load=server.load(self._wait_share),
            actors_elsewhere=server.actors.on_other_hosts(),
            idle_cores=self._cores.idle(),
            hosts=[own_use, *(HostUse(host, *use) for host, use in by_host)],
            dropped=server.dropped,
            numbered=server.numbers.used,
            round_progress=server.rounds.progress if server.rounds else (0, 0),
            filling=learner.filling(),
            padded=server.rounds.padded if server.rounds else 0,
            faults=server.actors.faults,
            has_received=server.has_received or learner.has_received,
            gave_up=server.failures.gave_up,
            mistakes=server.mistakes,
            no_unroll_comes=self.no_unroll_comes,
            end_reason=learner.end_reason,
            in_update=0 if learner.variables_complete else learner.updates + 1,
            longest_update=learner.longest_update,
            error=learner.end_reason if learner.failure else "",
            done=done,
        )

    def receive(self, reports: list[LearnerReport]) -> None:
        """Take the reports of all learners."""
        self.reports, self.reported_at = reports, time.monotonic()
        self.endless = self._endless_update.why_endless(reports)
        if self.config.learner_assignment == "balance":
            self.server.actors.loads = [report.load for report in reports]
        for rank, report in enumerate(reports):
            numbers = self.server.numbers
            numbers.most = max(numbers.most, report.numbered)
            self.aggregator.merge(rank, report.reading)

    def why_lost(self) -> str:
        """Return why training cannot continue although this learner has not failed, or ""."""
        return self.endless or self.other_learners_failure()

    def other_learners_failure(self) -> str:
        """Return why another learner failed; empty if none did, or if all failed alike."""
        if isinstance(self.learner.failure, COMMON_FAILURES):
            return ""
        for rank, report in enumerate(self.reports):
            if report.error and rank != self.group.rank:
                return f"learner {rank} failed: {report.error}"
        return ""

    def silence(self) -> str:
        """Return which learners have not answered since the last reports, or ""."""
        return self._silent.describe(self.reported_at) if self._silent else ""

    @property
    def has_received(self) -> bool:
        """Whether a learner has received a complete unroll, or a batch from its own source."""
        own = self.server.has_received or self.learner.has_received
        return own or any(report.has_received for report in self.reports)

    def filling(self) -> tuple[int, int]:
        """Return the unrolls in the learners' replays, and those that first updates need."""
        fillings = [report.filling for report in self.reports]
        return sum(have for have, _ in fillings), sum(needed for _, needed in fillings)

    def gave_up(self) -> dict[int, str]:
        """Return the actors of all learners that gave up, and why."""
        return _merged(r.gave_up for r in self.reports) | self.server.failures.gave_up

    def mistakes(self) -> dict[int, str]:
        """Return the actors of all learners that sent invalid unrolls, and what was wrong."""
        return _merged(r.mistakes for r in self.reports) | self.server.mistakes

    def num_actors(self) -> int:
        """Return the number of connected actors of all learners."""
        others = [r for rank, r in enumerate(self.reports) if rank != self.group.rank]
        return len(self.server.actors.heard) + sum(r.load.actors for r in others)

    def actor_counts(self) -> dict[str, float]:
        """Return the metrics of the actors of all learners: their number, and idle cores."""
        others = [r for rank, r in enumerate(self.reports) if rank != self.group.rank]
        elsewhere = self.server.actors.on_other_hosts() + sum(r.actors_elsewhere for r in others)
        counts: dict[str, float] = {"actors": self.num_actors(), "actors_elsewhere": elsewhere}
        idle = [r.idle_cores for r in self.reports if r.idle_cores is not None]
        if len(idle) == len(self.reports) > 0:
            counts["idle_cores"] = max(idle)
        return counts

    @property
    def mean_return(self) -> float:
        """The policy's own mean return: NaN before 100 games, and while a teacher acts in them."""
        return math.nan if self._guidance else self.aggregator.mean_return()

    def mean_returns(self) -> MeanReturns:
        """Return rank 0's mean returns, which no longer change once they end the run."""
        self.aggregator.collect(0, self.learner.meter)
        if self._guidance and float(self._guidance.share) == 0:
            self.aggregator.forget_games()
            self._guidance = None
        least_exploring = self.aggregator.mean_return()
        if self.learner.algorithm.explores_less_by_number:
            least_exploring = self.aggregator.mean_return_of_last_quarter()
        mean = self.mean_return
        if mean >= self.learner.limits.episode_return:
            self.aggregator.close()
        return MeanReturns(mean, least_exploring)

    def begin_time(self) -> None:
        """Begin to count this start's seconds after those that are known."""
        self._began, self._before = math.inf, self.seconds

    def count_time(self, now: float) -> None:
        """Count the seconds until `now`, from the first unroll or offline update on."""
        if self.has_received or self.learner.offline_left:
            self._began = min(self._began, now)
        if math.isfinite(self._began):
            self.seconds = self._before + now - self._began


def _merged(parts: Iterable[dict[int, str]]) -> dict[int, str]:
    return {actor: reason for part in parts for actor, reason in part.items()}
