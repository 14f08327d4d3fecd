"""A thread that exchanges status reports with the other learners, once a second.

So rank 0 logs what all of them measured, each knows who starves and who has plenty, and what one
failed of is said by all. None of it lies in a step's way: who is late holds up this thread alone.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from impala_mm.distributed.group import LearnerGroup
from impala_mm.records.metrics import MeterReading
from impala_mm.runtime import thread_names
from impala_mm.transport.rebalancing import LearnerLoad

_REPORT_SECONDS = 1.0


class LearnerReport(NamedTuple):
    """The status of a learner."""

    reading: MeterReading  # what it measured since the last report
    load: LearnerLoad
    actors_elsewhere: int  # on other hosts
    idle_cores: float | None  # of its host since the last report, where they are known
    dropped: int  # unrolls that went nowhere, since its start
    end_reason: str  # why it ended, or is to, by its own knowledge; empty while it does not know
    error: str  # what it failed of; empty where it did not
    done: bool  # its training has ended


class ReportExchange(threading.Thread):
    """Calls `report` and hands the reports of all, in the order of ranks, to `receive`."""

    def __init__(
        self,
        group: LearnerGroup,
        report: Callable[[], LearnerReport],
        receive: Callable[[list[LearnerReport]], None],
    ):
        super().__init__(name="pulse", daemon=True)
        self._group, self._report, self._receive = group, report, receive
        self._finishing = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Until all are done."""
        thread_names.name_thread("pulse")
        try:
            done = False
            while not done:
                reports = self._group.gather(self._report(), "pulse")
                self._receive(reports)
                done = all(report.done for report in reports)
                if not done:
                    self._finishing.wait(_REPORT_SECONDS)
        except BaseException as error:  # a learner is gone
            self.failure = error

    def finish(self, seconds: float) -> bool:
        """Called once this learner is done: whether all were, within so many seconds."""
        self._finishing.set()
        self.join(seconds)
        return not self.is_alive() and self.failure is None
