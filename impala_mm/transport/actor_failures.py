"""Reports of actors about broken environments, for the screen and the log of their learner.

An actor sends a report as a part of a `hello` (`actor.failure_report`): the first fault of each
kind, and whether it gave up, because none of its environments has ever worked.
"""

import textwrap
import threading

from impala_mm.config import printable
from impala_mm.runtime.log import Say

_SHOWN_KINDS = 5  # kinds of faults that are logged with their traceback
_MAX_TRACEBACK = 10_000  # characters of a traceback, its end


class ActorFailures:
    """The failures that the actors of one learner have reported."""

    def __init__(self, say: Say):
        self._say = say
        self._lock = threading.Lock()
        self._shown: set[str] = set()  # kinds of faults
        self._gave_up: dict[int, str] = {}  # by actor: why

    @property
    def gave_up(self) -> dict[int, str]:
        """The actors that gave up, and why; one that was started again may have joined since."""
        with self._lock:
            return dict(self._gave_up)

    def take(self, actor: int, host: str, failure: dict[str, str]) -> bool:
        """Log a report, each kind of fault once with its traceback; return whether it gave up."""
        kind, why, text = (
            printable.escape_line(str(failure[each])) for each in ("kind", "gave_up", "text")
        )
        with self._lock:
            is_new = kind not in self._shown and len(self._shown) < _SHOWN_KINDS
            if is_new:
                self._shown.add(kind)
            if why:
                self._gave_up[actor] = f"{why}; the first fault: {text}"
        said = f"actor {actor} on {host}: {text}"
        if is_new:
            traceback = printable.escape(str(failure["traceback"])[-_MAX_TRACEBACK:])
            self._say(f"{said}\n{textwrap.indent(traceback, '  ')}")
        elif kind not in self._shown:
            self._say(f"{said} (its traceback is in the actor's log)")
        if why:
            self._say(f"actor {actor} on {host} gave up: {why}")
        return bool(why)
