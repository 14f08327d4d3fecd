"""A thread that exchanges status reports with the other learners, once a second.

By these reports rank 0 logs the measurements of all learners, each learner knows which ones lack
unrolls, and if one fails, all log why. Training does not wait for the reports: a late learner
delays only this thread. If reports fail to come, rank 0 asks which learners do not answer.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from impala_mm.distributed.group import LearnerGroup
from impala_mm.records.host_use import HostUse
from impala_mm.records.metrics import MeterReading
from impala_mm.runtime import lifecycle
from impala_mm.transport.client import Client, Refused, Unreachable
from impala_mm.transport.connected_actors import LearnerLoad

_REPORT_SECONDS = 1.0
_LATE_SECONDS = 10.0  # without reports, after which the other learners are called
_CALL_SECONDS = 5.0
# Seconds without reports after which the connection between learners counts as broken.
REPORT_SILENCE_SECONDS = 20.0
# The timeout of an update of several learners: this many times the longest one so far, but at least
# the first number of seconds. The first update, which is traced and compiled, and the second one,
# for which nothing is known yet, have the other number.
_TIMES, _LEAST_SECONDS, FIRST_UPDATE_SECONDS = 10.0, 300.0, 1800.0


class LearnerReport(NamedTuple):
    """The status of a learner."""

    reading: MeterReading  # its measurements since the last report
    load: LearnerLoad
    actors_elsewhere: int  # number of its actors on other hosts
    idle_cores: float | None  # idle cores of its host since the last report; None if not known
    hosts: list[HostUse]  # what it uses on its host, then what its actors use on theirs
    dropped: int  # unrolls lost since its start
    numbered: int  # environments of its actors that have a number
    # Unrolls and columns of the round that its actors play; both are 0 if they play none.
    round_progress: tuple[int, int]
    # Unrolls in its replay, and those that its first update needs; both are 0 once it is made.
    filling: tuple[int, int]
    padded: int  # columns of rounds without an unroll since its start
    faults: int  # faults of environments since its start, by its actors' reports
    has_received: bool  # it has a valid unroll of an actor, or a batch of its own source
    gave_up: dict[int, str]  # its actors that ended before they sent an unroll, and why
    mistakes: dict[int, str]  # its actors that sent invalid unrolls, and what is wrong in them
    no_unroll_comes: str  # why it ends the run, if no unroll can come any more
    end_reason: str  # why it ended or will end; empty while it knows no reason
    in_update: int  # number of the update that it is making, from 1; 0 between updates
    longest_update: float  # seconds that its longest one took, without the first; 0 if unknown
    error: str  # the error that ended it; empty if there was none
    done: bool  # its training has ended


def unfinished_update(reports: Sequence[LearnerReport], silent: float = 0.0) -> str:
    """Return which learners have not finished their update, or "" if none is making one.

    `silent`: seconds since these reports. Where learners wait for different calls, reports
    continue; they stop where a connection between learners does.
    """
    if len(reports) > 1 and silent > REPORT_SILENCE_SECONDS:
        return (
            f": the learners have exchanged nothing for {silent:.0f} s; look at the network "
            f"between their hosts"
        )
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


class EndlessUpdate:
    """A watch for an update that never ends, since learners wait for different calls.

    Without it such a run would hang for ever: each learner waits within TensorFlow.
    """

    def __init__(self) -> None:
        self._making: list[int] = []  # `in_update` of each learner
        self._seconds = 0.0  # for which these have not changed
        self._looked_at = time.monotonic()

    def why_endless(self, reports: Sequence[LearnerReport]) -> str:
        """Return why the run cannot continue; empty if it can.

        It is called with each exchange of reports. Time in which none are exchanged, because a
        process is stopped or the network fails, does not count.
        """
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, 2 * _REPORT_SECONDS), now
        making = [report.in_update for report in reports]
        going_on = making != self._making or not any(making) or len(reports) == 1
        self._seconds, self._making = 0.0 if going_on else self._seconds + passed, making
        longest = max((report.longest_update for report in reports), default=0.0)
        timeout = max(_TIMES * longest, _LEAST_SECONDS) if longest else FIRST_UPDATE_SECONDS
        if self._seconds < timeout:
            return ""
        return f"no update for {self._seconds:.0f} s{unfinished_update(reports)}"


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
        lifecycle.name_thread("reports")
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

    def finish(self, seconds: float, goes_on: Callable[[], bool]) -> bool:
        """Return whether all learners finish within `seconds`, once this one has.

        While `goes_on` returns True they have as long again.
        """
        self._finishing.set()
        until = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < until:
            self.join(0.2)
            if goes_on():
                until = time.monotonic() + seconds
        return not self.is_alive() and self.failure is None


class SilentLearners:
    """The learners that do not answer while the reports of all learners fail to come, for rank 0.

    All-reduces and reports wait for every learner and tell nobody which one is missing. Only if
    reports are late are the other learners called, as actors call them.
    """

    def __init__(self, addresses: Sequence[str], rank: int, token: str):
        """Know where all learners listen, by rank; `rank` is the one that calls the others."""
        self._others = {i: address for i, address in enumerate(addresses) if i != rank}
        self._token = token
        self._silent: list[int] = []
        self._calls: threading.Thread | None = None

    def describe(self, reported_at: float) -> str:
        """Return which learners have not answered since the last reports; "" if none is known.

        `reported_at` is the time.monotonic() of these reports. It returns at once; another thread
        calls the learners.
        """
        seconds = time.monotonic() - reported_at
        if seconds < _LATE_SECONDS:
            self._silent = []
            return ""
        if not (self._calls and self._calls.is_alive()):
            self._calls = threading.Thread(target=self._call_all, name="silence", daemon=True)
            self._calls.start()
        silent = self._silent
        if not silent:
            return ""
        ranks, addresses = (
            " and ".join(map(str, each)) for each in (silent, [self._others[i] for i in silent])
        )
        s, has = ("s", "have") if len(silent) > 1 else ("", "has")
        return f"learner{s} {ranks} ({addresses} {has} not answered for {seconds:.0f} s)"

    def _call_all(self) -> None:
        lifecycle.name_thread("silence")
        self._silent = [rank for rank, at in self._others.items() if not self._answers(at)]

    def _answers(self, address: str) -> bool:
        try:
            Client(address, self._token, timeout=_CALL_SECONDS).hello({"probe": True})
        except Refused:
            return True
        except Unreachable:
            return False
        return True
