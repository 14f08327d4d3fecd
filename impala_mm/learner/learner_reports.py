"""A thread that exchanges status reports with the other learners, once a second.

By these reports rank 0 logs the measurements of all learners, each learner knows which ones lack
unrolls, and if one fails, all log why. Training does not wait for the reports: a late learner
delays only this thread.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from impala_mm.distributed.group import LearnerGroup
from impala_mm.records.metrics import MeterReading
from impala_mm.runtime import thread_names
from impala_mm.transport.rebalancing import LearnerLoad

_REPORT_SECONDS = 1.0


class LearnerReport(NamedTuple):
    """The status of a learner."""

    reading: MeterReading  # its measurements since the last report
    load: LearnerLoad
    actors_elsewhere: int  # number of its actors on other hosts
    idle_cores: float | None  # idle cores of its host since the last report; None if not known
    dropped: int  # unrolls lost since its start
    numbered: int  # environments of its actors that have a number
    padded: int  # columns of rounds without an unroll since its start
    faults: int  # faults of environments since its start, by its actors' reports
    has_received: bool  # it has a complete unroll of an actor, or a batch of its own source
    gave_up: dict[int, str]  # its actors whose environments have never worked, and why
    no_actors_left: str  # why it ends the run, if no unroll can come any more
    end_reason: str  # why it ended or will end; empty while it knows no reason
    in_update: int  # number of the update that it is making, from 1; 0 between updates
    error: str  # the error that ended it; empty if there was none
    done: bool  # its training has ended


def unfinished_update(reports: Sequence[LearnerReport]) -> str:
    """Return which learners have not finished their update, or "" if none is making one."""
    making = {rank: report.in_update for rank, report in enumerate(reports) if report.in_update}
    if not making:
        return ""
    learners = f"learner{'s' if len(making) > 1 else ''} {' and '.join(map(str, making))}"
    update = min(making.values())
    if len(reports) == 1:
        return f": {learners} did not finish update {update}"
    return (
        f": {learners} did not finish update {update}, and may wait for a call of `exchange` that "
        f"another learner does not make; a condition around it must be equal on all learners"
    )


class ReportExchange(threading.Thread):
    """A thread that calls `report` and passes all learners' reports, by rank, to `receive`."""

    def __init__(
        self,
        group: LearnerGroup,
        report: Callable[[], LearnerReport],
        receive: Callable[[list[LearnerReport]], None],
    ):
        super().__init__(name="reports", daemon=True)
        self._group, self._report, self._receive = group, report, receive
        self._finishing = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Exchange reports until all learners are done."""
        thread_names.name_thread("reports")
        try:
            done = False
            while not done:
                reports = self._group.gather(self._report(), "reports")
                self._receive(reports)
                done = all(report.done for report in reports)
                if not done:
                    self._finishing.wait(_REPORT_SECONDS)
        except BaseException as error:  # a learner is unreachable
            self.failure = error

    def finish(self, seconds: float) -> bool:
        """Return whether all learners finish within `seconds`, once this one has."""
        self._finishing.set()
        self.join(seconds)
        return not self.is_alive() and self.failure is None
