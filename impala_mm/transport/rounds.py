"""Rounds: batches whose unrolls were all played by the newest policy version, for one learner.

The server has a `Rounds` if the algorithm says `rounds = True`. A round has a fixed number of
columns, one for each unroll of a batch. An actor claims columns for its environments before it
plays them, and waits while there are none: so no unroll is played that would not be trained on. An
actor that delivers its unrolls claims again by the same message, and plays on by the same version
if columns are still free. `learner.sources` asks for a round, takes its unrolls and closes it.

A round opens when it is asked for, and only once the updates on all earlier batches are published:
so it is played by the policy that its own batch improves, also if an algorithm's own source puts
several rounds into one batch, or replayed batches between two rounds.

With `overlap`, actors play the next round while the learner trains on the last one: it is played by
the policy before that update, or partly by the one after it. Where every batch is new rounds, its
lag is therefore 1, or less. It opens once the learner has the last batch. It opens even earlier if
an actor finds no free column and no update is to come: then that actor does not wait for slower
ones. What it delivers before the learner has the last batch is held until its own round is closed,
so that the queue never mixes two rounds.

A round does not wait for an actor that has crashed: if nothing arrives for three times as long as
the actors' last unrolls took, and for some seconds, the round ends with the unrolls that it has.

With `alone`, for --deterministic_run, a single actor plays all rounds, and they wait for it however
long that takes. A round is over once the actor has claimed columns of the next one, since all that
it reported with this one has arrived by then: the same seed gives the same rounds.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from impala_mm.runtime.log import Say

# The timeout of a round, in seconds: for actors whose unrolls were measured at least the first, for
# others, which may still be warming up, at least the second. A crash costs one timeout, while a
# short timeout pads round after round where other programs hold up the actors.
_LEAST_TIMEOUT, _FIRST_TIMEOUT = 3.0, 10.0
_TIMES = 3.0  # the timeout is this many times the longest of an actor's last unrolls
_MEASURED = 8  # unrolls of an actor whose durations are kept
# Seconds in which an actor's first unroll is expected, although it came too late for its round.
_FIRST_UNROLL_SECONDS = 600.0


# The number of an actor, or the key of its stream with inference at the learner, which begins with
# the number.
Actor = int | tuple[int, int, int]


class _Claim(NamedTuple):
    """The columns that an actor is playing."""

    columns: int
    since: float  # time.monotonic() when it was granted


class _Round:
    """An open round."""

    def __init__(self, version: int, columns: int):
        self.version = version
        self.free = columns  # columns that no actor has claimed
        self.received = 0  # unrolls
        self.claims: dict[Actor, _Claim] = {}
        self.held: list[tuple[bytes, int]] = []  # unrolls not in the queue, and their versions
        self.active_at = 0.0  # time.monotonic() when columns were last claimed or delivered


class Rounds:
    """The open rounds of a learner, and the actors that play them or wait for the next one."""

    def __init__(self, columns: int, say: Say = print, overlap: bool = False, alone: bool = False):
        """Make rounds of `columns` unrolls."""
        self.columns, self._say, self._overlap, self.alone = columns, say, overlap, alone
        self._changed = threading.Condition()  # guards everything below
        self._newest: int | None = None  # the version that was published last
        self._updates_to_come = 0  # batches whose updates are not published yet
        self._has_closed = False  # whether a round is closed whose update has not begun
        self._released: list[tuple[bytes, int]] = []  # what was held for the rounds closed last
        self._open: list[_Round] = []  # at most one, or two with overlap: the first one ends first
        self._late: dict[Actor, _Claim] = {}  # claims of rounds that ended without them
        self._waiting: dict[Actor, int] = {}  # columns that actors want in the next round
        self._durations: dict[Actor, deque[float]] = {}  # seconds of its last unrolls, by actor
        # Columns without an unroll, and unrolls that no round had room for, since the start.
        self.padded = self.dropped = 0

    @property
    def progress(self) -> tuple[int, int]:
        """The unrolls of the first open round that have arrived, and its columns.

        Both are 0 where no actor plays one.
        """
        with self._changed:
            if not self._open:
                return 0, 0
            first = self._open[0]
            return (first.received, self.columns) if first.claims or first.received else (0, 0)

    def begin_update(self) -> None:
        """Open no further round before this update is published; with overlap, one."""
        with self._changed:
            self._updates_to_come += 1
            self._has_closed = False
            if self._overlap and not self._open:
                self._open_round()

    def publish(self, version: int) -> None:
        """Let this version play the next rounds."""
        with self._changed:
            self._newest = version
            self._updates_to_come = max(self._updates_to_come - 1, 0)
            if not self._overlap and self._open and not self._open[0].received:
                self._end(self._open.pop())  # `close` opens it again, by the new version
            if self._overlap and not self._open:
                self._open_round()
            self._grant_waiting()
            self._changed.notify_all()

    def claim(self, actor: Actor, columns: int) -> int | None:
        """Claim columns for an actor; return the version that plays them, or None: it must wait.

        An actor that repeats its claim gets the same answer. It may be granted fewer columns than
        it has environments; the rest of its unrolls is dropped.
        """
        with self._changed:
            playing = self._played_by(actor)
            if not playing:
                self._waiting[actor] = columns
                self._grant_waiting()
                playing = self._played_by(actor)
            if playing:
                # Older versions than the newest can no longer be downloaded.
                return self._newest if self._overlap else playing.version
            self._changed.notify_all()
            return None

    def forget(self, actor: Actor) -> None:
        """Let others play the columns that an actor has or waits for, since it has left."""
        with self._changed:
            self._waiting.pop(actor, None)
            for round_ in self._open:
                if claim := round_.claims.pop(actor, None):
                    round_.free += claim.columns
            self._grant_waiting()

    def players(self) -> set[int]:
        """Return the actors that are playing, which send nothing before their unrolls are complete.

        Those whose rounds have ended without them count for as long as their unrolls may take.
        """
        with self._changed:
            now = time.monotonic()
            # Of a single actor that takes turns, no claim ends by itself.
            open_ = [pair for round_ in self._open for pair in round_.claims.items()]
            playing = set[Actor]() if self.alone else {actor for actor, _ in open_}
            for actor, claim in [*self._late.items(), *(open_ if self.alone else ())]:
                measured = self._durations.get(actor)
                longest = _TIMES * max(measured) if measured else _FIRST_UNROLL_SECONDS
                if now - claim.since < longest:
                    playing.add(actor)
        return set(map(_number, playing))

    def take(self, actor: Actor, version: int, unrolls: Sequence[bytes]) -> list[bytes]:
        """Return those of an actor's unrolls that are for the queue now.

        Those of a later round than that which the learner waits for are held (`release`), and those
        that no open round has room for are dropped.
        """
        with self._changed:
            now, playing = time.monotonic(), self._played_by(actor)
            if not (playing and self._fits(version, playing)):
                fitting = [round_ for round_ in self._open if self._fits(version, round_)]
                playing = next((r for r in fitting if r.free), fitting[0] if fitting else None)
            claim = playing.claims.pop(actor, None) if playing else None
            if played := claim or self._late.pop(actor, None):
                seconds = self._durations.setdefault(actor, deque(maxlen=_MEASURED))
                seconds.append(now - played.since)
            taken: list[bytes] = []
            if playing:
                room = playing.free + (claim.columns if claim else 0)
                taken = list(unrolls[:room])
                playing.free = room - len(taken)
                playing.received += len(taken)
                playing.active_at = now
                self._grant_waiting()
                self._changed.notify_all()
            self._drop(actor, len(unrolls) - len(taken), playing is not None)
            if playing and (playing is not self._open[0] or (self._overlap and self._has_closed)):
                playing.held += [(unroll, version) for unroll in taken]
                return []
            return taken

    def close(self, timeout: float) -> int | None:
        """Open a round if none is open; once the first one is over, close it.

        Return its number of unrolls, at least 1, or None if it is not over within `timeout`
        seconds.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._is_over(now := time.monotonic()):
                if now >= deadline:
                    return None
                # At most 0.1 s, after which the round may have reached its own timeout.
                self._changed.wait(min(deadline - now, 0.1))
            closed, self._has_closed = self._open.pop(0), True
            self._released += closed.held
            if self._open:
                self._open[0].active_at = time.monotonic()  # its timeout begins now
            if missing := self.columns - closed.received:
                self._pad(missing, closed)
            self._end(closed)
            return closed.received

    def release(self) -> list[tuple[bytes, int]]:
        """Return the unrolls of closed rounds that were held, with their versions, each once."""
        with self._changed:
            released, self._released = self._released, []
            return released

    def _is_over(self, now: float) -> bool:
        if not self._open:
            self._open_round()
            return False
        first = self._open[0]
        if first.received == self.columns or self.alone:
            return first.received == self.columns and (not self.alone or bool(self._waiting))
        if first.received and not (self._is_current(first) or first.claims):
            return True
        if now - first.active_at < self._timeout(first):
            return False
        if first.received:
            return True
        if first.claims:  # none of these actors may come back: others may play instead
            self._end(first)
            first.free = self.columns
            self._grant_waiting()
        return False

    def _open_round(self) -> None:
        """Open a round of the newest version, unless an update is to come; with overlap, two."""
        if self._newest is not None and self._updates_to_come <= self._overlap:
            self._open.append(_Round(self._newest, self.columns))
            self._grant(self._open[-1])

    def _grant_waiting(self) -> None:
        """Grant columns to the actors that wait, with overlap also of the round after this one."""
        for round_ in self._open:
            self._grant(round_)
        behind = self._updates_to_come or self._has_closed
        if self._overlap and len(self._open) == 1 and self._waiting and not behind:
            self._open_round()

    def _played_by(self, actor: Actor) -> _Round | None:
        """Return the open round in which an actor has columns."""
        return next((round_ for round_ in self._open if actor in round_.claims), None)

    def _is_current(self, round_: _Round) -> bool:
        """Return whether a round may still grant columns, which the newest version then plays."""
        return self._overlap or round_.version == self._newest

    def _fits(self, version: int, round_: _Round) -> bool:
        """Return whether unrolls that this version played belong to an open round."""
        return version >= round_.version if self._overlap else version == round_.version

    def _end(self, round_: _Round) -> None:
        """Wait no longer for those that play a round."""
        self._late |= round_.claims
        round_.claims.clear()

    def _timeout(self, round_: _Round) -> float:
        """Return for how many seconds to wait for the actors that play a round."""
        longest = max((max(seconds) for seconds in self._durations.values()), default=0.0)
        timeout = _LEAST_TIMEOUT
        for actor in round_.claims:
            own = max(self._durations.get(actor, [longest]))
            least = _LEAST_TIMEOUT if actor in self._durations else _FIRST_TIMEOUT
            timeout = max(timeout, least, _TIMES * own)
        return timeout

    def _grant(self, round_: _Round) -> None:
        """Grant a round's free columns to the actors that wait, in the order of their claims."""
        now = time.monotonic()
        for actor in list(self._waiting) if self._is_current(round_) else ():
            if not round_.free:
                break
            granted = min(round_.free, self._waiting.pop(actor))
            round_.claims[actor] = _Claim(granted, now)
            round_.active_at = now
            round_.free -= granted

    def _pad(self, missing: int, closed: _Round) -> None:
        if not self.padded:
            absent = ", ".join(map(str, sorted({_number(actor) for actor in closed.claims})))
            self._say(
                f"a round of {self.columns} unrolls is padded with {missing} of weight 0: "
                + (f"actor {absent} sent none in time" if absent else "no actor claimed them")
                + "; the metric unrolls_padded counts these from now on"
            )
        self.padded += missing

    def _drop(self, actor: Actor, count: int, in_time: bool) -> None:
        if count and not self.dropped:
            why = "their round was full" if in_time else "they came after their round had ended"
            self._say(
                f"dropped {count} unrolls of actor {_number(actor)}: {why}; the metric "
                f"unrolls_dropped counts these from now on"
            )
        self.dropped += count


def _number(actor: Actor) -> int:
    return actor[0] if isinstance(actor, tuple) else actor


def why_unfit(columns: int, environments: int, agents: int = 1) -> str:
    """Return why actors with this number of environments cannot fill rounds; empty if they can.

    Each environment has a column for each of its `agents`.
    """
    size = environments * agents
    if columns % size == 0:
        return ""
    numbers = [str(n) for n in range(1, columns + 1) if columns % (n * agents) == 0]
    fitting = " or ".join(filter(None, [", ".join(numbers[:-1]), *numbers[-1:]]))
    each = "environment" if agents == 1 else f"of the {agents} agents of an environment"
    return (
        f"the algorithm trains on rounds of --batch_size={columns} unrolls, one for each {each}, "
        f"which actors with --num_envs={environments} cannot fill exactly: use "
        f"{f'--num_envs={fitting}, or ' * bool(fitting)}--batch_size={size * -(-columns // size)}"
    )


def why_too_few(learners: int, actors: int) -> str:
    """Return why so many actors cannot fill every learner's rounds; empty if they can.

    Actors that this start does not count may join a run that is started with none.
    """
    if not 0 < actors < learners:
        return ""
    have = "is only 1 actor" if actors == 1 else f"are only {actors} actors"
    return (
        f"each of {learners} learners trains on rounds of its own actors, and there {have}, so "
        f"that all would wait for ever"
    )
