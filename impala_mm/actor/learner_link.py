"""An actor's connection, in a thread of its own: unrolls go up and parameters come down.

`actor.run` hands it the unrolls of each round and plays on meanwhile; the parameters that it
fetched last are in `newest`. All learners of a run hold the same weights, so it feeds any of them:
the one to which the learner before sends it, and where a learner is away, the next that answers.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_mm.actor.host_cache import HostParameterCache
from impala_mm.data import compression
from impala_mm.runtime import thread_names
from impala_mm.runtime.backoff import Backoff
from impala_mm.runtime.log import Say
from impala_mm.transport.client import Client, Unreachable
from impala_mm.transport.messages import ActorTimes, Reply, new_incarnation

_SECONDS = 2.0  # that an actor waits in a full queue before it asks who else could need it;
_MOST_SECONDS = 30.0  # longer where the unrolls alone may take so long to cross the wire


class PolicyVersion(NamedTuple):
    """Which policy acted."""

    run: int  # of the learners that hold it
    version: int


class PulledParameters(NamedTuple):
    """A policy's parameters as they came."""

    run: int  # of the learners that hold them
    version: int
    vector: bytes

    @property
    def policy(self) -> PolicyVersion:
        """Whose parameters they are."""
        return PolicyVersion(self.run, self.version)


class UnrollBatch(NamedTuple):
    """The unrolls of all environments of an actor, of one round of T steps."""

    run: int | None  # of the learners whose parameters acted; None: of none that counts any more
    version: int  # the oldest policy version that acted
    contents: list[bytes]  # an unroll each
    episodes: np.ndarray  # float32 [K, 3]: (1 for a whole game else 0, return, steps)
    times: ActorTimes = ActorTimes()


class LearnerLink(threading.Thread):
    """Sends what `send` is given, one batch at a time, and pulls parameters after each."""

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
        compress: compression.Compress = compression.leave_uncompressed,
    ):
        """`addresses`: of learners, number `start` to be tried first; it stays with an only one."""
        super().__init__(name="link", daemon=True)
        self._addresses, self._learner = list(addresses), start  # which of them it feeds
        self._identity, self._token = identity, token
        self._pull_secs, self._max_lag = pull_secs, max_lag
        self._say, self._stop_asked, self._compress = say, stop, compress
        self._batches: queue.Queue[UnrollBatch] = queue.Queue(maxsize=1)
        self._incarnation = new_incarnation()
        self._number = 0  # of the next message
        self._client: Client | None = None
        self._unconfirmed: int | None = None  # nonce of a learner that may have the batch in hand
        self._dropped = 0  # unrolls that went nowhere since a learner was told
        self._patience = _SECONDS  # for the answer to the batch in hand
        self._run_id = ""  # whose host cache it uses
        self._cache: HostParameterCache | None = None
        self._pulled_at = -math.inf  # when this actor last asked the learner itself
        self._batch_done = threading.Event()  # the batch is there, and so is who may act next
        self.newest: PulledParameters | None = None
        self.failure: BaseException | None = None
        self.connected = threading.Event()

    def send(self, batch: UnrollBatch, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Hand a batch over; wait while the one before is still on its way.

        An algorithm with a `max_lag` waits for the policy that may act next, too. `meanwhile` is
        called several times a second then. Returns False where told to stop.
        """
        self._batch_done.clear()
        while not self._stop_asked.is_set():
            if self.failure:
                raise self.failure
            try:
                self._batches.put(batch, timeout=0.2)
            except queue.Full:
                meanwhile()
                continue
            break
        while self._max_lag is not None and not self._stop_asked.is_set():
            if self.failure:
                raise self.failure
            if self._batch_done.wait(0.2):
                break
            meanwhile()
        return not self._stop_asked.is_set()

    def close(self) -> None:
        """Leave this host's cache, from whatever state."""
        if self._cache:
            self._cache.close()
            self._cache = None

    def run(self) -> None:
        """Connect, then send each batch and pull after it; from the start when that fails."""
        thread_names.name_thread("link")
        try:
            batch = sent = None
            only_learner = len(self._addresses) == 1
            while not self._stop_asked.is_set():
                client = self._client or self._connect()
                if client is None:
                    return
                try:
                    if batch and self._unconfirmed not in {None, client.nonce}:
                        sent, batch = self._drop(batch), None
                    batch = batch or (None if sent else self._next_batch())
                    if batch:
                        self._send(client, batch)
                        batch, sent = None, batch  # whatever comes now: it is not sent again
                    if sent and self._follow_redirect(client):
                        sent = sent._replace(run=None)  # the next policy waits for what it plays
                    if self._client:
                        self._pull(client, sent)
                        sent = None
                except Unreachable as error:
                    self._patience = min(2 * self._patience, _MOST_SECONDS)
                    if not client.still_answers():
                        self._say(f"the learner does not answer ({error}); trying again")
                        self._client = None
                    elif batch and (only_learner or self._patience == _MOST_SECONDS):
                        self._say("the learner's queue is full: waits for room")
        except BaseException as error:
            self.failure = error

    # -- unrolls up

    def _next_batch(self) -> UnrollBatch | None:
        try:
            batch = self._batches.get(timeout=0.2)
        except queue.Empty:
            return None
        return batch._replace(contents=[self._compress(content) for content in batch.contents])

    def _send(self, client: Client, batch: UnrollBatch) -> None:
        assert batch.run is not None
        header = client.header(self._identity["actor"], self._incarnation)._replace(
            run=batch.run,
            number=self._number,
            dropped=self._dropped,
            **batch.times.in_microseconds(),
            version=batch.version,
        )
        is_repeat, self._unconfirmed = self._unconfirmed == client.nonce, client.nonce
        # Of several learners another may need this actor, whose queue is not full.
        timeout = self._patience if len(self._addresses) > 1 else None
        reply = client.enqueue(header, batch.contents, batch.episodes, is_repeat, timeout)
        self._unconfirmed, self._dropped, self._patience = None, 0, _SECONDS
        self._number += 1
        if reply == Reply.FOREIGN:
            self._dropped = len(batch.contents)
        if reply == Reply.FOREIGN and batch.run == client.run:
            self._say("another learner answers: what was played for the one before is dropped")
            self._client = None

    def _drop(self, batch: UnrollBatch) -> UnrollBatch:
        """Drop what another learner may have: sent elsewhere too, it would be learnt twice.

        It counts as sent: the next is to be played, by whatever policy there is.
        """
        self._unconfirmed = None
        self._number += 1
        self._dropped += len(batch.contents)
        self._say(
            f"{len(batch.contents)} unrolls dropped: the learner did not say whether it has them"
        )
        return batch._replace(run=None)

    def _follow_redirect(self, client: Client) -> bool:
        """Go to another learner, if the one that was just fed says so; return whether it did."""
        to, client.next_learner = client.next_learner, None
        if not client.learners or to is None or to >= len(self._addresses) or to == self._learner:
            return False
        self._learner, self._client = to, None
        return True

    # -- parameters down

    def _pull(self, client: Client, sent: UnrollBatch | None) -> None:
        """Fetch the newest parameters, where there are newer ones and it is time."""
        if self._max_lag is None:
            have = self.newest.version if self.newest else None
            if client.version is not None and (have is None or client.version > have):
                self._pull_for_host(client, client.version, have)
        elif sent:
            due = sent.version + 1 - self._max_lag if sent.run == client.run else 0
            self._pull_next(client, due)
            self._batch_done.set()

    def _pull_for_host(self, client: Client, wanted: int, have: int | None) -> None:
        """From this host's cache; if that is stale and it is our turn, from the learner."""
        assert client.run is not None
        found = self._cache.newest(after=have) if self._cache else None
        if not found or found[0] < wanted:
            found = self._pull_from_learner(client, have, self._pull_secs) or found
        if found:
            self.newest = PulledParameters(client.run, *found)

    def _pull_from_learner(
        self, client: Client, have: int | None, pull_secs: float
    ) -> tuple[int, bytes] | None:
        """Pull, and leave it for the other actors of this host; None where it is not our turn."""
        if time.monotonic() - self._pulled_at < pull_secs:
            return None
        if self._cache is None:
            self._pulled_at = time.monotonic()
            return client.get_parameters()
        with self._cache.pull_turn(pull_secs) as ours:
            if not ours:
                return None
            found = self._cache.newest(after=have)  # another had its turn since we looked
            if found and (client.version is None or found[0] >= client.version):
                return found
            self._pulled_at = time.monotonic()
            found = client.get_parameters()
            if found:
                try:
                    self._cache.store(*found)
                except OSError as error:
                    self._say(f"cannot leave parameters for this host's other actors: {error}")
        return found

    def _pull_next(self, client: Client, due: int) -> None:
        """Wait for version `due`."""
        assert client.run is not None
        backoff = Backoff(f"for policy version {due}", self._say, self._stop_asked, silent=10.0)
        while not self._stop_asked.is_set():
            found = client.get_parameters(due)
            if found:
                self.newest = PulledParameters(client.run, *found)
                return
            backoff.pause(0.002, most=0.1)

    # -- the connection

    def _connect(self) -> Client | None:
        """Wait, for ever, for a learner that takes this actor; None when told to stop."""
        what = "the learner" if len(self._addresses) == 1 else "a learner"
        backoff = Backoff(
            f"for {what} at {', '.join(self._addresses)}", self._say, self._stop_asked
        )
        missed = 0
        while not self._stop_asked.is_set():
            address = self._addresses[self._learner]
            try:
                client = Client(address, self._token)
                self._hello(client)
                found = self._first_policy(client, backoff)
            except Unreachable:
                self._learner = (self._learner + 1) % len(self._addresses)
                missed += 1
                if missed % len(self._addresses) == 0:
                    backoff.pause(0.2, most=5.0)
                continue
            if found is None:
                break
            assert client.run is not None
            client.version, _ = found
            self.newest = PulledParameters(client.run, *found)
            self._client = client
            self._say(f"joined the learner at {address}, policy version {client.version}")
            self.connected.set()
            return client
        return None

    def _first_policy(self, client: Client, backoff: Backoff) -> tuple[int, bytes] | None:
        """Return this learner's policy, as soon as it has one; None when told to stop."""
        while not self._stop_asked.is_set():
            found = self._cache.newest(after=None) if self._cache else None
            found = found or self._pull_from_learner(client, have=None, pull_secs=0.0)
            if found:
                return found
            backoff.pause(0.2, most=5.0)
        return None

    def _hello(self, client: Client) -> None:
        own = {"incarnation": self._incarnation, "learners": self._addresses}
        answer = client.hello(self._identity | own)
        if client.learners:  # in the learners' own order, by which they say where to go
            address = self._addresses[self._learner]
            self._addresses, self._learner = client.learners, client.learners.index(address)
        if self._cache is None or answer["run_id"] != self._run_id:
            self._open_cache(answer["run_id"])

    def _open_cache(self, run_id: str) -> None:
        """Share one pull with all actors of this run on this host, where its memory allows."""
        self.close()
        self._run_id = run_id
        try:
            self._cache = HostParameterCache(run_id)
        except OSError as error:
            self._say(f"pulls its parameters for itself alone: {error}")
