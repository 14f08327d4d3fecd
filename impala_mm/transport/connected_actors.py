"""The actors of a learner: what they reported, which learner each feeds, and whom it refused.

All learners hold the same weights, so any actor may feed any of them, and each update takes as long
as the learner that waits longest for its unrolls. The learners report their loads to each other,
and full queues give actors to starved ones (`choose_learner`).
"""

import math
import socket
import textwrap
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_mm.config import messages
from impala_mm.runtime.log import Say
from impala_mm.runtime.machine import Use
from impala_mm.transport.messages import MAX_ACTORS, MAX_ENVIRONMENTS, MessageHeader, NumberRange

SETTLE_SECONDS = 5.0  # seconds for which no actor moves after one joined or left a learner
_STARVED = 0.1  # a learner that waits for more than this share of its time needs actors


class LearnerLoad(NamedTuple):
    """The load of a learner."""

    wait_share: float  # share of its time that it waits for unrolls
    queue_fill: float  # 0 to 1
    actors: int  # actors that sent something within the last seconds, or play for a round
    settled: bool  # no actor joined or left within the last seconds


class ActorReport(NamedTuple):
    """The report that comes with an actor's message."""

    actor: int
    level: str  # the level that the actor plays
    version: int  # the oldest policy version that acted in the unrolls of the message
    episodes: np.ndarray  # those that ended, see `data.episodes.to_rows`
    times: dict[str, float]  # seconds, by field of `ActorTimes`


class JoinedActor(NamedTuple):
    """The last hello of an actor, as far as its learner keeps it."""

    level: str  # the level that it plays
    host_name: str
    is_here: bool  # whether it runs on this learner's host
    movable: bool  # whether it knows all learners by the same addresses


class ConnectedActors:
    """The connected actors, when one last joined or left, and the loads of all learners by rank.

    Calls of actors run in threads of TensorFlow, so each method holds the lock for itself.
    """

    def __init__(self, rank: int = 0, in_rounds: bool = False) -> None:
        """Begin without any actor of learner `rank`; `in_rounds`: the actors play in rounds."""
        self._rank, self._in_rounds = rank, in_rounds
        self.heard: dict[int, float] = {}  # by connected actor: when it sent its last message
        self.joined: dict[int, JoinedActor] = {}  # by actor, those that have left included
        self.loads = list[LearnerLoad]()
        self.changed_at = time.monotonic()  # when an actor last joined or left
        self._use = dict[int, Use]()  # by the actors' last messages
        self._gave_up = set[int]()  # of these a message may still be on its way
        # By the actors' messages: reports that nobody took yet, unrolls that reached no learner,
        # and faults of environments.
        self._reports = list[ActorReport]()
        self.dropped = self.faults = 0
        self._lock = threading.RLock()

    def join(self, actor: int, asked: dict[str, Any], movable: bool) -> None:
        """Add an actor by what its hello says."""
        is_here = asked.get("host") == socket.gethostname()
        level, host_name = asked.get("level", ""), asked.get("host_name", "")
        with self._lock:
            self.joined[actor] = JoinedActor(level, host_name, is_here, movable)
            self._gave_up.discard(actor)
        self.heard_from(actor)

    def heard_from(self, actor: int) -> None:
        """Record that a message of the actor arrived: it is connected, unless it gave up."""
        with self._lock:
            if actor in self._gave_up:
                return
            if actor not in self.heard:
                self.changed_at = time.monotonic()
            self.heard[actor] = time.monotonic()

    def delivered(self, header: MessageHeader, episodes: np.ndarray) -> None:
        """Keep what a message reported, now that it is delivered."""
        with self._lock:
            if header.actor in self.heard:  # it may have left, such as to another learner
                self.heard[header.actor] = time.monotonic()
            if header.memory:
                self._use[header.actor] = Use(header.millicores / 1000, header.memory)
            self.dropped += header.dropped
            self.faults += header.faults
            if header.playing or len(episodes):
                level, times = self.joined[header.actor].level, header.times._asdict()
                episodes = episodes[np.isfinite(episodes).all(1)]  # a mean would be NaN for long
                episodes = episodes[(episodes[:, 0] >= 0) & (episodes[:, 0] < MAX_ENVIRONMENTS)]
                self._reports.append(
                    ActorReport(header.actor, level, header.version, episodes, times)
                )

    def take_reports(self) -> list[ActorReport]:
        """Return the actors' reports since the last call."""
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def leave(self, actor: int) -> None:
        """Remove an actor that gives up."""
        with self._lock:
            self.heard.pop(actor, None)
            self._gave_up.add(actor)

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
            return sum(not self.joined[actor].is_here for actor in self.heard)

    def use_by_host(self) -> dict[str, Use]:
        """Return what the processes of all connected actors use."""
        hosts: dict[str, Use] = {}
        with self._lock:
            for actor in self.heard.keys() & self._use.keys():
                host, more = self.joined[actor].host_name, self._use[actor]
                before = hosts.get(host, Use())
                hosts[host] = Use(before.cores + more.cores, before.memory + more.memory)
        return hosts

    def load(
        self, wait_share: float, queue_fill: float, playing: Collection[int] = ()
    ) -> LearnerLoad:
        """Return the load; the actors in `playing` are active, though they send nothing."""
        with self._lock:
            now = time.monotonic()
            active = sum(
                actor in playing or now - heard < 2 * SETTLE_SECONDS
                for actor, heard in self.heard.items()
            )
            return LearnerLoad(wait_share, queue_fill, active, self._is_settled())

    def redirect(self, actor: int, queue_fill: float, playing: Collection[int] = ()) -> int | None:
        """Remove the actor if another learner needs it more and it may move; return that one."""
        with self._lock:
            if actor not in self.heard or not self.joined[actor].movable:
                return None
            choose = choose_learner_without_actors if self._in_rounds else choose_learner
            # To count the active actors takes long. More of them never keep an actor here, so
            # nearly all messages are answered as if all connected actors were active.
            most = LearnerLoad(0.0, queue_fill, len(self.heard), self._is_settled())
            if choose(self._rank, most, self.loads) is None:
                return None
            learner = choose(self._rank, self.load(0.0, queue_fill, playing), self.loads)
            if learner is not None:
                del self.heard[actor]
                self.changed_at = time.monotonic()
            return learner

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
            messages.escape_line(str(failure[field])) for field in ("kind", "gave_up", "text")
        )
        with self._lock:
            is_new = kind not in self._shown and len(self._shown) < _SHOWN_KINDS
            if is_new:
                self._shown.add(kind)
            if why:
                self._gave_up[actor] = f"{why}; the first fault: {text}"
        said = f"actor {actor} on {host}: {text}"
        if is_new:
            traceback = messages.escape(str(failure["traceback"])[-_MAX_TRACEBACK:])
            self._say(f"{said}\n{textwrap.indent(traceback, '  ')}")
        elif kind not in self._shown:
            self._say(f"{said} (its traceback is in the actor's log)")
        if why:
            self._say(f"actor {actor} on {host} gave up: {why}")
        return bool(why)


_REPORT_SECONDS = 60.0  # between reports of callers without the token
_MAX_SHOWN = 2000  # characters of a refusal that are logged: it quotes what the actor sent


class Refusals:
    """The log of those whom a learner refuses, which no caller can fill."""

    def __init__(self, say: Say):
        """Log by `say`."""
        self._say, self._lock = say, threading.Lock()
        self._told = set[tuple[Any, ...]]()  # whose refusal was logged, if that is done once
        self._strangers, self._reported_at = 0, -math.inf  # not reported yet; the last report

    def log(self, who: str, reason: str) -> None:
        """Log a refusal."""
        self._say(f"{who} refused: {messages.escape_line(reason, _MAX_SHOWN)}")

    def log_once(self, key: tuple[Any, ...], who: str, reason: str) -> None:
        """Log a refusal, the first with this key."""
        if key not in self._told and len(self._told) < MAX_ACTORS:
            self._told.add(key)
            self.log(who, reason)

    def stranger(self) -> None:
        """Count a caller without the token."""
        with self._lock:
            self._strangers += 1
        self.report_strangers()

    def report_strangers(self) -> None:
        """Log how many callers without the token there were, at most once a minute."""
        with self._lock:
            count, now = self._strangers, time.monotonic()
            if not count or now - self._reported_at < _REPORT_SECONDS:
                return
            self._strangers, self._reported_at = 0, now
        who = "a caller" if count == 1 else f"{count:,} callers"
        self._say(f"{who} without the run's token {'was' if count == 1 else 'were'} refused")


class EnvironmentNumbers:
    """The environments of the actors that have joined one learner."""

    def __init__(self, rank: int, learners: int):
        """Give numbers to the environments of learner `rank` of this many learners."""
        self._rank, self._learners = rank, learners
        self._lock = threading.Lock()
        self._ranges: dict[int, tuple[int, Sequence[int]]] = {}  # (first, groups' sizes), by actor
        self.used = 0  # environments that have a number
        self.most = 0  # the largest `used` of all learners, as far as is known

    @property
    def count(self) -> int:
        """A number that is larger than those of all environments in the run."""
        return self._learners * max(self.used, self.most)

    def join(self, actor: int, sizes: Sequence[int], first: int | None = None) -> NumberRange:
        """Return the numbers of an actor's environments, which are in groups of these sizes.

        `first` is its first number if a learner of the run has given it its numbers before.
        """
        with self._lock:
            next_one = self._rank + self._learners * self.used
            own, own_sizes = self._ranges.get(actor, (next_one, ()))
            if first is None and sum(sizes) > sum(own_sizes):
                own, self.used = next_one, self.used + sum(sizes)
            first = own if first is None else first
            if sizes:
                self._ranges[actor] = first, list(sizes)
            return NumberRange(first, self._learners, self.count)

    def sizes(self, actor: int) -> Sequence[int]:
        """Return the sizes of an actor's groups; empty if it has named none."""
        return self._ranges.get(actor, (0, ()))[1]

    def has_room(self, actor: int, environments: int, first: int | None = None) -> bool:
        """Return whether an actor with this many environments can get numbers, which are int32.

        For `first` see `join`.
        """
        with self._lock:
            if first is not None:
                return first + self._learners * environments < 2**31
            more = environments if environments > sum(self.sizes(actor)) else 0
            return self._learners * (self.used + more) < 2**31

    def of_group(self, actor: int, group: int, size: int) -> np.ndarray:
        """Return the numbers of an actor's group of `size` environments, int32 [size]."""
        begin = sum(self.sizes(actor)[:group])
        return self.in_run(actor, np.arange(begin, begin + size)).astype(np.int32)

    def in_run(self, actor: int, environments: np.ndarray) -> np.ndarray:
        """Return the numbers in the run of environments that have these numbers in their actor."""
        first, _ = self._ranges.get(actor, (self._rank, ()))
        return first + self._learners * environments


def choose_learner_without_actors(
    rank: int, own: LearnerLoad, loads: Sequence[LearnerLoad]
) -> int | None:
    """Return the learner that an actor of learner `rank` must feed next, in a run with rounds.

    Learners whose actors play in rounds wait for unrolls by design, so only a learner that has no
    actor at all gets one.
    """
    if not own.settled or own.actors < 2:
        return None
    empty = [other for other, load in enumerate(loads) if not load.actors and load.settled]
    return next((other for other in empty if other != rank), None)


def choose_learner(rank: int, own: LearnerLoad, loads: Sequence[LearnerLoad]) -> int | None:
    """Return the learner that an actor of learner `rank` must feed next; None: the same one.

    `loads` has the last reported load of each learner, `own` is the current load of this one. No
    actor moves if the learner that it leaves would then wait instead.
    """
    if len(loads) < 2 or own.queue_fill < 1 or not own.settled:
        return None
    if loads[rank].wait_share > _STARVED / 2:
        return None
    neediest = max(range(len(loads)), key=lambda other: loads[other].wait_share)
    target = loads[neediest]
    if (
        neediest == rank
        or target.wait_share < _STARVED
        or target.queue_fill > 0.5
        or not target.settled
    ):
        return None
    return neediest if not target.actors or own.actors > target.actors + 1 else None
