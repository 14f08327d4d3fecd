"""The watch over a running learner: whether it works, waits in vain, or stands still.

`monitor` calls each class several times a second.
"""

import math
import time

from impala_mm.algorithms.interface import defines
from impala_mm.learner.learner_reports import REPORT_SILENCE_SECONDS, unfinished_update
from impala_mm.learner.run_status import RunStatus
from impala_mm.records.bottleneck import describe_filling
from impala_mm.records.outputs import EventHook
from impala_mm.runtime import starter

# Seconds for which a learner whose first update is compiled sends heartbeats. A frontend that tries
# out a returned host expects to see within five minutes whether the learners hang.
_COMPILING_SECONDS = 180.0
_STALL_SECONDS = 60.0  # seconds without an update before a stall is reported
# Seconds after the first actor gave up in which others may join, if their number is not known, and
# after the first invalid unroll in which other actors may send a valid one. An actor may need
# minutes to load TensorFlow from a slow file system.
_OTHERS_SECONDS = 300.0
# Seconds after the first invalid unroll in which its own actor may send a valid one, at least.
_INVALID_SECONDS = 10.0
# Seconds of waiting until the first line; the pauses between lines grow up to a minute.
_FIRST_LINE_SECONDS, _LONGEST_PAUSE = 5.0, 60.0


class WorkBeat:
    """The heartbeat to the supervisor, unless an update hangs or no reports arrive.

    A first update may take some minutes.
    """

    def __init__(self, status: RunStatus):
        self._status = status
        self._updates: int | None = None  # at the last look
        # time.monotonic() until which a first update may run
        self._compiling_until = time.monotonic() + _COMPILING_SECONDS

    def look(self, now: float) -> None:
        """Send the heartbeat if the learner works."""
        learner, before = self._status.learner, self._updates
        self._updates = learner.updates
        if not learner.is_compiling:
            self._compiling_until = now + _COMPILING_SECONDS
        works = learner.updates != before or not learner.variables_lock.locked()
        works |= learner.is_compiling and now < self._compiling_until
        if works and now - self._status.reported_at < REPORT_SILENCE_SECONDS:
            self._status.heartbeat.frames = learner.frames
            self._status.heartbeat.beat()


class NoUnrollComes(Exception):
    """No actor has sent a valid unroll or will send one, so that the run can make no progress."""


class FirstUnroll:
    """The wait for a run's first unroll: what the run waits for, and whether it waits in vain."""

    def __init__(self, status: RunStatus):
        self._status, self._expected = status, starter.num_actors()  # None: not known
        self._began = time.monotonic()
        self._next_line = _FIRST_LINE_SECONDS  # seconds of waiting
        # time.monotonic() when the first actor gave up, and when the first invalid unroll came
        self._first_gave_up: float | None = None
        self._first_mistake: float | None = None

    def look(self) -> None:
        """Stop if no unroll can come; before actors may play, none can have."""
        status = self._status
        if status.has_received:
            return
        if status.learner.offline_left:
            self._began, self._next_line = time.monotonic(), _FIRST_LINE_SECONDS
        elif reason := self.why_none_comes():
            status.no_unroll_comes = reason
            status.learner.stop(reason)

    @property
    def is_awaited(self) -> bool:
        """Whether the run waits for its first unroll."""
        return not (self._status.learner.offline_left or self._status.has_received)

    def say_due_line(self) -> None:
        """Print what the run waits for, if it does: after 5, 10, 20, 40, 80, 140, ... s."""
        waited = time.monotonic() - self._began
        if self.is_awaited and waited >= self._next_line:
            self._next_line = waited + min(self._next_line, _LONGEST_PAUSE)
            self._status.say(self.describe())

    def describe(self) -> str:
        """Return what the run waits for, in words, and for how long."""
        gave_up, all_of = len(self._status.gave_up()), ""
        if self._expected is not None:
            all_of = f" of {self._expected}"
        what = f"no unroll yet: {self._status.num_actors()}{all_of} actors connected"
        if gave_up:
            what += f", {gave_up} gave up"
        if defines(self._status.learner.algorithm.source):  # it may need no actors
            what += ", and no batch of the algorithm's source"
        return f"{what} ({time.monotonic() - self._began:.0f} s)"

    def why_none_comes(self) -> str:
        """Return why no valid unroll can come any more; empty if one may still come."""
        connected, gave_up = self._status.num_actors(), self._status.gave_up()
        if reason := self._why_none_is_valid(connected, gave_up, self._status.mistakes()):
            return reason
        if not gave_up:
            return ""
        now = time.monotonic()
        # It is not set anew when one that was started again joins, since it may give up again.
        self._first_gave_up = self._first_gave_up or now
        if connected or (self._expected is None and now - self._first_gave_up < _OTHERS_SECONDS):
            return ""
        if self._expected is not None and len(gave_up) < self._expected:
            return ""
        number, reason = min(gave_up.items())
        all_of = "the only actor" if len(gave_up) == 1 else f"all {len(gave_up)} actors"
        return f"{all_of} gave up (actor {number}: {reason}), so no unroll can come"

    def _why_none_is_valid(
        self, connected: int, gave_up: dict[int, str], mistakes: dict[int, str]
    ) -> str:
        if not mistakes:
            self._first_mistake = None  # those that sent them have left
            return ""
        now = time.monotonic()
        self._first_mistake = self._first_mistake or now
        others = (self._expected or connected) - len(mistakes.keys() | gave_up.keys())
        seconds = now - self._first_mistake
        # The next unroll may take as long as the first one did.
        of_unroll = self._first_mistake - self._began
        if seconds < max(_OTHERS_SECONDS if others > 0 else _INVALID_SECONDS, of_unroll):
            return ""
        number, mistake = min(mistakes.items())
        return (
            f"no valid unroll came within {seconds:.0f} s of the first invalid one (actor "
            f"{number}: in one, {mistake}): correct the algorithm or the environment"
        )


class StallReports:
    """The reports of a minute without an update, to the user and to --event_hook."""

    def __init__(self, status: RunStatus, first_unroll: FirstUnroll, event_hook: EventHook):
        self._status, self._first_unroll, self._event_hook = status, first_unroll, event_hook
        self._updates: int | None = None  # at the last look
        self._since = math.inf  # when they last changed; infinite once a stall is reported

    def look(self, now: float) -> None:
        """Report a stall that has begun; the next one needs another update first."""
        if (updates := self._status.learner.updates) != self._updates:
            self._updates, self._since = updates, now
        if now - self._since < _STALL_SECONDS:
            return
        self._since = math.inf
        if self._first_unroll.is_awaited:  # the lines of the wait are printed anyway
            message = self._first_unroll.describe()
        else:
            message = f"no update for {_STALL_SECONDS:g} s{self._reason()}"
            self._status.say(message)
        self._event_hook.call("stall", message)

    def _reason(self) -> str:
        """Return why there is no update, as far as it is known, after a colon."""
        status = self._status
        if silent := status.silence():
            return f": {silent}"
        if (filling := status.filling())[1]:
            return f": {describe_filling(filling)}"
        return unfinished_update(status.reports, time.monotonic() - status.reported_at)
