"""The log of refused actors and of callers without the run's token."""

import math
import threading
import time
from typing import Any

from impala_mm.config import printable
from impala_mm.runtime.log import Say
from impala_mm.transport.admission import REPORT_SECONDS
from impala_mm.transport.validity import MAX_ACTORS

_MAX_START = 100  # characters of the id of an actor's start that are remembered
_MAX_SHOWN = 2000  # characters of a refusal that are logged: it quotes what the actor sent


class Refusals:
    """Counts refusals and logs them, without letting a caller fill the log."""

    def __init__(self, say: Say):
        """Log by `say`."""
        self.count = 0
        self._say, self._lock = say, threading.Lock()
        self._other_runs = set[tuple[str, Any]]()  # their actors: (id of the start, number)
        self._strangers, self._reported_at = 0, -math.inf  # not reported yet; the last report

    def malformed(self, mistake: str) -> None:
        """Count and log an actor whose hello could not be read."""
        self.count += 1
        self._say(f"an actor is refused: {mistake}")

    def unfit(self, asked: dict[str, Any], sentence: str) -> None:
        """Count and log an actor that does not fit the learner."""
        self.count += 1
        shown = printable.escape_line(sentence, _MAX_SHOWN)
        self._say(f"actor {int(asked['actor'])} on {asked['host']} refused: {shown}")

    def of_another_run(self, asked: dict[str, Any], sentence: str) -> None:
        """Count and log an actor of another run, once for each, since it tries again."""
        actor = asked["start"][:_MAX_START], asked.get("actor")
        known = actor in self._other_runs or len(self._other_runs) >= MAX_ACTORS
        if known or asked.get("probe"):
            return
        self._other_runs.add(actor)
        self.count += 1
        self._say(f"actor {actor[1]} on {asked['host']} refused: {printable.escape_line(sentence)}")

    def stranger(self) -> None:
        """Count a caller without the token."""
        with self._lock:
            self.count += 1
            self._strangers += 1
        self.report_strangers()

    def report_strangers(self) -> None:
        """Log how many callers without the token there were, at most once a minute."""
        with self._lock:
            count, now = self._strangers, time.monotonic()
            if not count or now - self._reported_at < REPORT_SECONDS:
                return
            self._strangers, self._reported_at = 0, now
        who = "a caller" if count == 1 else f"{count:,} callers"
        self._say(f"{who} without the run's token {'was' if count == 1 else 'were'} refused")
