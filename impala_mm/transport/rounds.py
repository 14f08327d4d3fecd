"""Rounds: batches whose unrolls were all played by the newest policy version, for one learner.

The server has a `Rounds` if the algorithm says `rounds = True`. A round has a fixed number of
columns, one for each unroll of a batch. An actor claims columns for its environments before it
plays them, and waits while there are none: so no unroll is played that would not be trained on. An
actor that has delivered its unrolls claims again, and plays on by the same version if columns are
still free. `learner.round_source` asks for a round, takes its unrolls and closes it.

A round opens when it is asked for, and only once the updates on all earlier batches are published:
so it is played by the policy that its own batch improves, also if an algorithm's own source puts
several rounds into one batch, or replayed batches between two rounds.

With `overlap`, the next round opens as soon as the learner has the batch of the last one, so that
actors play it while the learner trains: it is played by the policy before that update, or partly by
the one after it. Its lag is therefore 1, or less.

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


# The number of an actor, or the key of its stream with inference at the learner, which begins with
# the number.
Actor = int | tuple[int, int, int]


class _Claim(NamedTuple):
    """The columns that an actor is playing."""

    columns: int
    since: float  # time.monotonic() when it was granted


class Rounds:
    """The open round of a learner, and the actors that play it or wait for the next one."""

    def __init__(self, columns: int, say: Say = print, overlap: bool = False, alone: bool = False):
        """Make rounds of `columns` unrolls."""
        self.columns, self._say, self._overlap, self.alone = columns, say, overlap, alone
        self._changed = threading.Condition()  # guards everything below
        self._newest: int | None = None  # the version that was published last
        self._updates_to_come = 0  # batches whose updates are not published yet
        self._version: int | None = None  # of the open round; None: no round is open
        self._free = 0  # columns that no actor has claimed
        self._received = 0  # unrolls in the learner's queue
        self._claims: dict[Actor, _Claim] = {}  # by actor
        self._late: dict[Actor, _Claim] = {}  # claims of rounds that ended without them
        self._waiting: dict[Actor, int] = {}  # columns that actors want in the next round
        self._durations: dict[Actor, deque[float]] = {}  # seconds of its last unrolls, by actor
        self._active_at = 0.0  # time.monotonic() when columns were last claimed or delivered
        # Columns without an unroll, and unrolls that no round had room for, since the start.
        self.padded = self.dropped = 0

    @property
    def progress(self) -> tuple[int, int]:
        """The unrolls of the open round that have arrived, and its columns.

        Both are 0 where no actor plays one.
        """
        with self._changed:
            playing = self._version is not None and (self._claims or self._received)
            return (self._received, self.columns) if playing else (0, 0)

    def begin_update(self) -> None:
        """Open no further round before one more version is published; one more with overlap."""
        with self._changed:
            self._updates_to_come += 1
            if self._overlap and self._version is None:
                self._open()

    def publish(self, version: int) -> None:
        """Let this version play the next rounds."""
        with self._changed:
            self._newest = version
            self._updates_to_come = max(self._updates_to_come - 1, 0)
            if not self._overlap and self._version is not None and not self._received:
                self._end_claims()
                self._version = None  # `close` opens it again, by the new version
            if self._overlap and self._version is None:
                self._open()
            self._changed.notify_all()

    def claim(self, actor: Actor, columns: int) -> int | None:
        """Claim columns for an actor; return the version that plays them, or None: it must wait.

        An actor that repeats its claim gets the same answer. It may be granted fewer columns than
        it has environments; the rest of its unrolls is dropped.
        """
        with self._changed:
            if self._is_current() and actor not in self._claims:
                self._waiting[actor] = columns
                self._grant_free(self._free)
            if actor in self._claims:
                # Older versions than the newest can no longer be downloaded.
                return self._newest if self._overlap else self._version
            self._waiting[actor] = columns
            self._changed.notify_all()
            return None

    def forget(self, actor: Actor) -> None:
        """Forget that an actor waits, since it has left."""
        with self._changed:
            self._waiting.pop(actor, None)

    def take(self, actor: Actor, version: int, unrolls: Sequence[bytes]) -> list[bytes]:
        """Return those of an actor's unrolls that the open round has room for; drop the rest."""
        with self._changed:
            now, current = time.monotonic(), self._fits(version)
            claim = self._claims.pop(actor, None) if current else None
            if played := claim or self._late.pop(actor, None):
                seconds = self._durations.setdefault(actor, deque(maxlen=_MEASURED))
                seconds.append(now - played.since)
            room = self._free + (claim.columns if claim else 0) if current else 0
            taken = list(unrolls[:room])
            if current:
                self._received += len(taken)
                self._active_at = now
                self._grant_free(room - len(taken))
                self._changed.notify_all()
            self._drop(actor, len(unrolls) - len(taken), current)
            return taken

    def close(self, timeout: float) -> int | None:
        """Open a round if none is open; once it is over, close it.

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
            self._version = None
            if missing := self.columns - self._received:
                self._pad(missing)
            self._end_claims()
            return self._received

    def _is_over(self, now: float) -> bool:
        if self._version is None:
            self._open()
            return False
        if self._received == self.columns or self.alone:
            return self._received == self.columns and (not self.alone or bool(self._waiting))
        if self._received and not (self._is_current() or self._claims):
            return True
        if now - self._active_at < self._timeout():
            return False
        if self._received:
            return True
        if self._claims:  # none of these actors may come back: others may play instead
            self._end_claims()
            self._grant_free(self.columns)
        return False

    def _open(self) -> None:
        """Open a round of the newest version, unless newer ones are to come; with overlap two."""
        if self._newest is not None and self._updates_to_come <= self._overlap:
            self._version, self._received = self._newest, 0
            self._grant_free(self.columns)

    def _is_current(self) -> bool:
        """Return whether a round of the newest version is open; others grant no more columns."""
        return self._version is not None and (self._overlap or self._version == self._newest)

    def _fits(self, version: int) -> bool:
        """Return whether unrolls that this version played belong to the open round."""
        if self._version is None:
            return False
        return version >= self._version if self._overlap else version == self._version

    def _end_claims(self) -> None:
        self._late |= self._claims
        self._claims.clear()

    def _timeout(self) -> float:
        """Return for how many seconds to wait for the actors that are playing."""
        longest = max((max(seconds) for seconds in self._durations.values()), default=0.0)
        timeout = _LEAST_TIMEOUT
        for actor in self._claims:
            own = max(self._durations.get(actor, [longest]))
            least = _LEAST_TIMEOUT if actor in self._durations else _FIRST_TIMEOUT
            timeout = max(timeout, least, _TIMES * own)
        return timeout

    def _grant_free(self, free: int) -> None:
        """Grant `free` columns to the actors that wait, in the order of their claims."""
        now = time.monotonic()
        for actor in list(self._waiting) if self._is_current() else ():
            if not free:
                break
            granted = min(free, self._waiting.pop(actor))
            self._claims[actor] = _Claim(granted, now)
            self._active_at = now
            free -= granted
        self._free = free

    def _pad(self, missing: int) -> None:
        if not self.padded:
            absent = ", ".join(map(str, sorted({_number(actor) for actor in self._claims})))
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


def why_unfit(columns: int, environments: int) -> str:
    """Return why actors with this number of environments cannot fill rounds; empty if they can."""
    if columns % environments == 0:
        return ""
    *others, last = [str(n) for n in range(1, columns + 1) if columns % n == 0]
    fitting = f"{', '.join(others)} or {last}" if others else last
    multiple = environments * -(-columns // environments)
    return (
        f"the algorithm trains on rounds of --batch_size={columns} unrolls, one for each "
        f"environment, which actors with --num_envs={environments} cannot fill exactly: use "
        f"--num_envs={fitting}, or --batch_size={multiple}"
    )
