"""An actor's connection, in a thread of its own: unrolls go up and parameters come down.

`actor.run` hands it each group of unrolls and plays on meanwhile; what it fetched last stands in
`newest`. All learners of a run hold the same weights, so it feeds any of them: the one it is sent
to by the one before, and where a learner is away, the next that answers.
"""

import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_mm.actor.host_cache import HostParameterCache
from impala_mm.data import compression
from impala_mm.runtime import thread_names
from impala_mm.runtime.backoff import Backoff, Say
from impala_mm.transport import messages
from impala_mm.transport.client import Client, Unreachable
from impala_mm.transport.delivery import FOREIGN

_SECONDS = 2.0  # that an actor waits in a full queue before it asks who else could need it;
_MOST_SECONDS = 30.0  # longer where the unrolls alone may take so long to cross the wire


class PulledParameters(NamedTuple):
    """Parameters as they came."""

    run: int  # of the learners that hold them
    version: int
    vector: bytes


class UnrollBatch(NamedTuple):
    """What was played in T steps."""

    run: int  # of the learners whose parameters acted
    version: int  # the oldest that acted
    contents: list[bytes]  # an unroll each
    episodes: np.ndarray  # float32 [K, 3]: (1 for a whole game else 0, return, steps)
    times: messages.ActorTimes = messages.ActorTimes()


class LearnerLink(threading.Thread):
    """Sends what `send` is given, one group at a time, and pulls after each."""

    def __init__(
        self,
        addresses: Sequence[str],
        start: int,
        identity: dict[str, Any],
        token: str,
        pull_secs: float,
        max_lag: int | None,
        say: Say,
        stop: threading.Event,
        pack: compression.Compress = compression.leave_uncompressed,
    ):
        """`addresses` of learners, number `start` to be tried first; it stays with an only one.

        Each unroll is sent as `pack` makes it.
        """
        super().__init__(name="link", daemon=True)
        self._addresses, self._at = list(addresses), start  # at: the learner that it feeds
        self._identity, self._token = identity, token
        self._pull_secs, self._max_lag = pull_secs, max_lag
        self._say, self._ending, self._pack = say, stop, pack
        self._groups: queue.Queue[UnrollBatch] = queue.Queue(maxsize=1)
        self._incarnation = secrets.randbits(62)
        self._sequence = 0
        self._client: Client | None = None
        self._tried = -1  # nonce of the learner that did not say whether it has the group in hand
        self._dropped = 0  # unrolls that went nowhere since a learner was told
        self._patience = _SECONDS  # for the answer to the group in hand
        self._run = ""  # whose share of this host it is in
        self._share: HostParameterCache | None = None
        self._pulled_at = -math.inf  # when this actor last asked the learner itself
        self._settled = threading.Event()  # what was sent is there, and who may act next is here
        self.newest: PulledParameters | None = None
        self.failure: BaseException | None = None
        self.connected = threading.Event()

    def send(self, group: UnrollBatch, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Hands a group over; waits while the one before is still on its way.

        An algorithm with a `max_lag` waits for the policy that may act next, too. `meanwhile` is
        called several times a second then. False: stopped.
        """
        self._settled.clear()
        while not self._ending.is_set():
            if self.failure:
                raise self.failure
            try:
                self._groups.put(group, timeout=0.2)
            except queue.Full:
                meanwhile()
                continue
            break
        while self._max_lag is not None and not self._ending.is_set():
            if self.failure:
                raise self.failure
            if self._settled.wait(0.2):
                break
            meanwhile()
        return not self._ending.is_set()

    def close(self) -> None:
        """Leaves this host's share, from whatever state."""
        if self._share:
            self._share.close()
            self._share = None

    def run(self) -> None:
        """Connects, then sends each group and pulls after it; from the start when that fails."""
        thread_names.name_thread("link")
        try:
            group = sent = None
            one = len(self._addresses) == 1
            while not self._ending.is_set():
                client = self._client or self._connect()
                if client is None:
                    return
                try:
                    if group and self._tried not in {-1, client.nonce}:
                        sent, group = self._drop(group), None
                    group = group or (None if sent else self._next_group())
                    if group:
                        self._send(client, group)
                        group, sent = None, group  # whatever comes now: it is not sent again
                    if sent and self._moves(client):
                        sent = sent._replace(run=-1)  # the next policy waits for what it plays now
                    if self._client:
                        self._pull(client, sent)
                        sent = None
                except Unreachable as error:
                    self._patience = min(2 * self._patience, _MOST_SECONDS)
                    if not client.is_there():
                        self._say(f"the learner does not answer ({error}); trying again")
                        self._client = None
                    elif group and (one or self._patience == _MOST_SECONDS):
                        self._say("the learner's queue is full: waits for room")
        except BaseException as error:
            self.failure = error

    def _drop(self, group: UnrollBatch) -> UnrollBatch:
        """What another learner was asked to take and may have: elsewhere it would be learnt twice.

        It counts as sent: the next is to be played, by whatever policy there is.
        """
        self._tried = -1
        self._sequence += 1
        self._dropped += len(group.contents)
        self._say(
            f"{len(group.contents)} unrolls dropped: the learner did not say whether it has them"
        )
        return group._replace(run=-1)

    def _moves(self, client: Client) -> bool:
        """Whether it goes to another learner, as the one that was just fed says."""
        to, client.go_to = client.go_to, -1
        if not client.learners or not 0 <= to < len(self._addresses) or to == self._at:
            return False
        self._at, self._client = to, None
        return True

    def _next_group(self) -> UnrollBatch | None:
        try:
            group = self._groups.get(timeout=0.2)
        except queue.Empty:
            return None
        return group._replace(contents=[self._pack(content) for content in group.contents])

    def _send(self, client: Client, group: UnrollBatch) -> None:
        header = messages.UnrollHeader(
            nonce=client.nonce,
            run=group.run,
            actor=self._identity["actor"],
            incarnation=self._incarnation,
            sequence=self._sequence,
            dropped=self._dropped,
            **{name: round(1e6 * seconds) for name, seconds in group.times._asdict().items()},
            version=group.version,
            pieces=0,
        )
        again, self._tried = self._tried == client.nonce, client.nonce
        # Of several learners another may need this actor, whose queue is not full.
        seconds = self._patience if len(self._addresses) > 1 else None
        code = client.enqueue(header, group.contents, group.episodes, again, seconds)
        self._tried, self._dropped, self._patience = -1, 0, _SECONDS
        self._sequence += 1
        if code == FOREIGN:
            self._dropped = len(group.contents)
        if code == FOREIGN and group.run == client.run:
            self._say("another learner answers: what was played for the one before is dropped")
            self._client = None

    def _pull(self, client: Client, sent: UnrollBatch | None) -> None:
        """Fetches the newest parameters, where there are newer ones and it is time."""
        if self._max_lag is None:
            have = self.newest.version if self.newest else -1
            if client.version > have:
                self._pull_for_host(client, have)
        elif sent:
            due = sent.version + 1 - self._max_lag if sent.run == client.run else 0
            self._pull_next(client, due)
            self._settled.set()

    def _pull_for_host(self, client: Client, have: int) -> None:
        """From this host's shared memory; if that is stale and it is our turn, from the learner."""
        found = self._share.newest(after=have) if self._share else None
        if not found or found[0] < client.version:
            found = self._from_learner(client, have, self._pull_secs) or found
        if found:
            self.newest = PulledParameters(client.run, *found)

    def _from_learner(
        self, client: Client, have: int, pull_secs: float
    ) -> tuple[int, bytes] | None:
        """Pulled, and left for the other actors of this host; None where it is not our turn."""
        if time.monotonic() - self._pulled_at < pull_secs:
            return None
        if self._share is None:
            self._pulled_at = time.monotonic()
            return client.get_parameters()
        with self._share.turn(pull_secs) as ours:
            if not ours:
                return None
            found = self._share.newest(after=have)  # another had its turn since we looked
            if found and found[0] >= client.version:
                return found
            self._pulled_at = time.monotonic()
            found = client.get_parameters()
            if found:
                try:
                    self._share.put(*found)
                except OSError as error:
                    self._say(f"cannot leave parameters for this host's other actors: {error}")
        return found

    def _pull_next(self, client: Client, due: int) -> None:
        """Waits for version `due`."""
        waiting = Backoff(f"for policy version {due}", self._say, self._ending, silent=10.0)
        while not self._ending.is_set():
            found = client.get_parameters(due)
            if found:
                self.newest = PulledParameters(client.run, *found)
                return
            waiting.pause(0.002, most=0.1)

    def _connect(self) -> Client | None:
        """Waits, for ever, for a learner that takes us; None when told to stop."""
        what = "the learner" if len(self._addresses) == 1 else "a learner"
        waiting = Backoff(f"for {what} at {', '.join(self._addresses)}", self._say, self._ending)
        missed = 0
        while not self._ending.is_set():
            address = self._addresses[self._at]
            try:
                client = Client(address, self._token)
                self._hello(client)
                found = self._first_policy(client, waiting)
            except Unreachable:
                self._at = (self._at + 1) % len(self._addresses)
                missed += 1
                if missed % len(self._addresses) == 0:
                    waiting.pause(0.2, most=5.0)
                continue
            if found is None:
                break
            client.version, _ = found
            self.newest = PulledParameters(client.run, *found)
            self._client = client
            self._say(f"joined the learner at {address}, policy version {client.version}")
            self.connected.set()
            return client
        return None

    def _first_policy(self, client: Client, waiting: Backoff) -> tuple[int, bytes] | None:
        """Of this learner, as soon as it has one; None when told to stop."""
        while not self._ending.is_set():
            found = self._share.newest(after=-1) if self._share else None
            found = found or self._from_learner(client, have=-1, pull_secs=0.0)
            if found:
                return found
            waiting.pause(0.2, most=5.0)
        return None

    def _hello(self, client: Client) -> None:
        me = {"incarnation": self._incarnation, "host": socket.gethostname()}
        answer = client.hello(self._identity | me | {"learners": self._addresses})
        if client.learners:  # in the learners' own order, by which they say where to go
            address = self._addresses[self._at]
            self._addresses, self._at = client.learners, client.learners.index(address)
        if self._share is None or answer["run_id"] != self._run:
            self._share_with_host(answer["run_id"])

    def _share_with_host(self, run_id: str) -> None:
        """One pull serves all actors of this run on this host, where its shared memory allows."""
        self.close()
        self._run = run_id
        try:
            self._share = HostParameterCache(run_id)
        except OSError as error:
            self._say(f"pulls its parameters for itself alone: {error}")
