"""The actors of a learner: where each may go, what they reported, and those that were refused."""

import math
import socket
import textwrap
import threading
import time
from collections.abc import Collection
from typing import Any

from impala_mm.config import printable
from impala_mm.runtime.log import Say
from impala_mm.runtime.machine import Use
from impala_mm.transport.admission import REPORT_SECONDS
from impala_mm.transport.rebalancing import (
    SETTLE_SECONDS,
    LearnerLoad,
    choose_learner,
    choose_learner_without_actors,
)
from impala_mm.transport.validity import MAX_ACTORS


class ConnectedActors:
    """The connected actors, when one last joined or left, and the loads of all learners by rank.

    Calls of actors run in threads of TensorFlow, so each method holds the lock for itself.
    """

    def __init__(self, in_rounds: bool = False) -> None:
        """Begin without any actor, as the only learner; `in_rounds`: the actors play in rounds."""
        self._in_rounds = in_rounds
        self.heard: dict[int, float] = {}  # by connected actor: when it sent its last message
        self.levels: dict[int, str] = {}  # by actor, those that have left included
        self.rank, self.loads = 0, list[LearnerLoad]()
        self.changed_at = time.monotonic()  # when an actor last joined or left
        self._on_this_host = set[int]()  # including those that have left
        self._host_names = dict[int, str]()  # including those of actors that have left
        self._use = dict[int, Use]()  # by the actors' last messages
        self._movable = set[int]()  # actors that know all learners by the same addresses
        self._lock = threading.Lock()

    def join(self, actor: int, asked: dict[str, Any], movable: bool) -> None:
        """Add an actor by what its hello says."""
        with self._lock:
            self.levels[actor] = asked.get("level", "")
            self._host_names[actor] = asked.get("host_name", "")
            here = asked.get("host") == socket.gethostname()
            for actors, belongs in ((self._on_this_host, here), (self._movable, movable)):
                actors.discard(actor)
                if belongs:
                    actors.add(actor)
        self.heard_from(actor)

    def heard_from(self, actor: int) -> None:
        """Record that a message of the actor arrived: it is connected."""
        with self._lock:
            if actor not in self.heard:
                self.changed_at = time.monotonic()
            self.heard[actor] = time.monotonic()

    def heard_again(self, actor: int) -> None:
        """Record a message of the actor unless it has left, such as to another learner."""
        with self._lock:
            if actor in self.heard:
                self.heard[actor] = time.monotonic()

    def leave(self, actor: int) -> None:
        """Remove an actor that gives up."""
        with self._lock:
            self.heard.pop(actor, None)

    def forget_silent(self, seconds: float, playing: Collection[int] = ()) -> list[int]:
        """Remove the actors that have sent nothing for `seconds`; return their numbers.

        The actors in `playing` remain: their silence is expected.
        """
        deadline = time.monotonic() - seconds
        with self._lock:
            silent = [actor for actor, heard in self.heard.items() if heard < deadline]
            gone = [actor for actor in silent if actor not in playing]
            for actor in gone:
                del self.heard[actor]
        return gone

    def others(self, actor: int) -> list[int]:
        """Return the connected actors besides this one, in order."""
        with self._lock:
            return sorted(self.heard.keys() - {actor})

    def on_other_hosts(self) -> int:
        """Return how many of the connected actors run on other hosts."""
        with self._lock:
            return len(self.heard.keys() - self._on_this_host)

    def record_use(self, actor: int, use: Use) -> None:
        """Record what an actor says that its processes use."""
        with self._lock:
            self._use[actor] = use

    def use_by_host(self) -> dict[str, Use]:
        """Return what the processes of all connected actors use."""
        found: dict[str, Use] = {}
        with self._lock:
            for actor in self.heard.keys() & self._use.keys():
                host, more = self._host_names.get(actor, ""), self._use[actor]
                before = found.get(host, Use())
                found[host] = Use(before.cores + more.cores, before.memory + more.memory)
        return found

    def load(
        self, wait_share: float, queue_fill: float, playing: Collection[int] = ()
    ) -> LearnerLoad:
        """Return this learner's load."""
        with self._lock:
            return self._load(wait_share, queue_fill, playing)

    def redirect(self, actor: int, queue_fill: float, playing: Collection[int] = ()) -> int | None:
        """Remove the actor if another learner needs it more and it may move; return that one."""
        with self._lock:
            if actor not in self._movable or actor not in self.heard:
                return None
            choose = choose_learner_without_actors if self._in_rounds else choose_learner
            # To count the active actors takes long. More of them never keep an actor here, so
            # nearly all messages are answered as if all connected actors were active.
            most = LearnerLoad(0.0, queue_fill, len(self.heard), self._is_settled())
            if choose(self.rank, most, self.loads) is None:
                return None
            learner = choose(self.rank, self._load(0.0, queue_fill, playing), self.loads)
            if learner is not None:
                del self.heard[actor]
                self.changed_at = time.monotonic()
            return learner

    def _load(self, wait_share: float, queue_fill: float, playing: Collection[int]) -> LearnerLoad:
        """Return the load; the actors in `playing` are active, though they send nothing."""
        now = time.monotonic()
        active = sum(
            actor in playing or now - heard < 2 * SETTLE_SECONDS
            for actor, heard in self.heard.items()
        )
        return LearnerLoad(wait_share, queue_fill, active, self._is_settled())

    def _is_settled(self) -> bool:
        return time.monotonic() - self.changed_at > SETTLE_SECONDS


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
