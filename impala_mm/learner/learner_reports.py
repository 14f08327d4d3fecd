"""Once a second every learner tells the others how it is: a thread that meets its like.

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
    """How a learner is."""

    part: MeterReading  # what it measured since the last report
    need: LearnerLoad  # of actors
    elsewhere: int  # of its actors, on other hosts
    idle: float | None  # cores of its host since the last report, where they are known
    dropped: int  # messages, had before or meant for another process, since its start
    ended: str  # why it ended, or is to, by its own knowledge; empty while it does not know
    error: str  # what it failed of; empty where it did not
    done: bool  # its training has ended


class ReportExchange(threading.Thread):
    """Calls `report` and hands the reports of all, in the order of ranks, to `heard`."""

    def __init__(
        self,
        group: LearnerGroup,
        report: Callable[[], LearnerReport],
        heard: Callable[[list[LearnerReport]], None],
    ):
        super().__init__(name="pulse", daemon=True)
        self._group, self._report, self._heard = group, report, heard
        self._hurry = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Until all are done."""
        thread_names.name_thread("pulse")
        try:
            done = False
            while not done:
                reports = self._group.gather(self._report(), "pulse")
                self._heard(reports)
                done = all(report.done for report in reports)
                if not done:
                    self._hurry.wait(_REPORT_SECONDS)
        except BaseException as error:  # a learner is gone
            self.failure = error

    def end(self, seconds: float) -> bool:
        """Called once this learner is done: whether all were, within so many seconds."""
        self._hurry.set()
        self.join(seconds)
        return not self.is_alive() and self.failure is None
