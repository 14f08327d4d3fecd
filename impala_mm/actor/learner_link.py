"""An actor's connection to a learner, in a thread: it sends unrolls and downloads parameters.

`actor.run` hands over the unrolls of T steps and continues to play; the newest downloaded
parameters (`policy_puller`) are in `newest`. All learners of a run hold the same weights, so an
actor may feed any of them: it changes to another one when its learner redirects it or is
unreachable.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_mm.actor.policy_puller import PolicyPuller, PolicyVersion, PulledParameters
from impala_mm.data import compression
from impala_mm.runtime import lifecycle, ports
from impala_mm.runtime.log import Say
from impala_mm.runtime.machine import ProcessUse
from impala_mm.runtime.timing import Backoff
from impala_mm.transport.client import Client, OtherRun, Unreachable
from impala_mm.transport.messages import ActorTimes, NumberRange, Reply, new_incarnation

# Timeout in seconds of a call with unrolls if there are several learners. A call that a full queue
# holds back is then repeated, and the reply may redirect the actor to another learner. The timeout
# doubles each time, up to the maximum, since large unrolls may need that long to be transferred.
_CALL_SECONDS = 2.0
_MAX_CALL_SECONDS = 30.0


class UnrollBatch(NamedTuple):
    """The unrolls of all environments of an actor, of T steps."""

    run: int  # number of the run whose policy acted
    version: int  # the oldest policy version that acted
    contents: list[bytes]  # one per unroll
    episodes: np.ndarray  # those that ended, see `data.episodes.to_rows`
    times: ActorTimes = ActorTimes()
    faults: int = 0  # of environments in these steps


def split_by_run(
    played: UnrollBatch, contents: Sequence[bytes], policies: Sequence[PolicyVersion]
) -> list[UnrollBatch]:
    """Return the batches in which to send unrolls that these policies played.

    The last one is `played` with the unrolls of its run, and with the oldest version that played
    one: some may have waited for goals of later steps. Those that waited longer than the run of
    their policy lasted are in a batch before it, which the learner drops and counts.
    """
    pairs = list(zip(policies, contents, strict=True))
    own = [pair for pair in pairs if pair[0].run == played.run]
    foreign = [pair for pair in pairs if pair[0].run != played.run]
    version = min((policy.version for policy, _ in own), default=played.version)
    batches = [played._replace(version=version, contents=[content for _, content in own])]
    if foreign:
        contents = [content for _, content in foreign]
        batches.insert(0, UnrollBatch(*foreign[0][0], contents, played.episodes[:0]))
    return batches


class LearnerLink(threading.Thread):
    """A thread that sends one batch of unrolls at a time, and pulls parameters after each.

    In an algorithm with rounds it pulls only the version that `wait_for_turn` waits for.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        start: int,
        identity: dict[str, Any],
        token: str,
        pull_secs: float,
        columns: int,
        say: Say,
        stop: threading.Event,
        compress: compression.Compress = compression.leave_uncompressed,
    ):
        """Connect to one of the learners at `addresses`, trying number `start` first.

        `columns` is the number of environments that play in rounds; 0: the algorithm has none.
        """
        super().__init__(name="link", daemon=True)
        self._addresses = list(addresses)
        self._learner = start  # index of the learner that it feeds
        self._identity, self._token = identity, token
        self._columns = columns
        self._puller = PolicyPuller(0.0 if columns else pull_secs, say, stop)
        self._say, self._stop_asked, self._compress = say, stop, compress
        # What the actor hands over; None: it waits for its turn in the next round.
        self._batches: queue.Queue[UnrollBatch | None] = queue.Queue(maxsize=1)
        self._incarnation = new_incarnation()
        self._number = 0  # number of the next message
        self._client: Client | None = None
        # Nonce of a learner that has not confirmed the current batch, but may have received it.
        self._unconfirmed: int | None = None
        self._dropped = 0  # unrolls that reached no learner, not yet reported
        self._use = ProcessUse()
        self._timeout = _CALL_SECONDS  # for the calls that send the current batch
        self._numbered_run = ""  # the run to which the environments' numbers belong
        self._wants_turn = False  # whether the actor waits for its turn
        self._turn_given = threading.Event()  # set when `newest` may play its next unrolls
        self.policy_wait = 0.0  # seconds that the last turn was waited for, after a first claim
        # Seconds of the last turns that were not given at once.
        self._waits = deque[float](maxlen=4)
        # The numbers of its environments, from the first learner of the run that it joined.
        self._numbers = NumberRange(0, 1, 1)
        self.failure: BaseException | None = None
        self.connected = threading.Event()
        self.has_delivered = False  # whether a learner has taken unrolls

    def send(self, batch: UnrollBatch | None, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Hand over a batch, or ask for a turn; wait while the previous one is being sent.

        `meanwhile` is called several times per second of waiting. Return False if asked to stop.
        """
        while not self._stop_asked.is_set():
            if self.failure:
                raise self.failure
            try:
                self._batches.put(batch, timeout=0.2)
            except queue.Full:
                meanwhile()
                continue
            break
        return not self._stop_asked.is_set()

    def wait_for_turn(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until `newest` may play the next unrolls: at once, unless they are for a round.

        Arguments and result are those of `send`.
        """
        self.policy_wait = 0.0
        if not self._columns:
            return not self._stop_asked.is_set()
        self._turn_given.clear()
        if self.send(None, meanwhile):
            while not (self._stop_asked.is_set() or self._turn_given.wait(0.2)):
                if self.failure:
                    raise self.failure
                meanwhile()
        return not self._stop_asked.is_set()

    @property
    def numbers(self) -> NumberRange:
        """The numbers of this actor's environments in the run."""
        client = self._client  # the link's thread may set it to None at any time
        count = client.environments if client else 0
        return self._numbers._replace(bound=max(count, self._numbers.bound))

    @property
    def newest(self) -> PulledParameters | None:
        """The newest downloaded parameters."""
        return self._puller.newest

    @property
    def address(self) -> str:
        """The address of the learner that this actor feeds, or tries next."""
        return self._addresses[self._learner]

    def close(self) -> None:
        """Leave this host's cache of parameters."""
        self._puller.close()

    def run(self) -> None:
        """Connect, then send each batch and pull after it; reconnect if that fails."""
        lifecycle.name_thread("link")
        try:
            batch, sent = None, False  # `sent`: it is not known yet what the learner has now
            while not self._stop_asked.is_set():
                client = None  # gRPC would give a new client the broken connection of a former one
                client = self._client or self._connect()
                if client is None:
                    return
                try:
                    if batch and self._unconfirmed not in {None, client.nonce}:
                        self._drop(batch)
                        sent, batch = True, None
                    if not (batch or sent or self._wants_turn):
                        batch = self._next_batch()
                    if batch:
                        self._send(client, batch)
                        batch, sent = None, True  # it is not sent again, whatever fails now
                    if sent:
                        self._follow_redirect(client)
                    if self._client and self._wants_turn:
                        self._claim_turn(client)
                    elif self._client and not self._columns:
                        self._puller.pull_newest(client)
                    sent = sent and self._client is None
                except Unreachable as error:
                    self._handle_failure(client, error, is_sending=batch is not None)
        except BaseException as error:
            self.failure = error

    def _handle_failure(self, client: Client, error: Unreachable, is_sending: bool) -> None:
        """Log why a call failed; drop the connection if the learner does not answer any more."""
        self._timeout = min(2 * self._timeout, _MAX_CALL_SECONDS)
        only_learner = len(self._addresses) == 1
        if not client.still_answers():
            self._say(error.log_line)
            self._client = None
        elif not error.late:
            self._say(f"the learner could not answer: {error}")
            self._stop_asked.wait(self._timeout)
        elif is_sending and (only_learner or self._timeout == _MAX_CALL_SECONDS):
            self._say("the learner's queue is full: waiting for room")

    # -- sending unrolls

    def _next_batch(self) -> UnrollBatch | None:
        try:
            batch = self._batches.get(timeout=0.2)
        except queue.Empty:
            return None
        if batch is None:
            self._wants_turn = True
            return None
        return batch._replace(contents=[self._compress(content) for content in batch.contents])

    def _send(self, client: Client, batch: UnrollBatch) -> None:
        header = client.header(self._identity["actor"], self._incarnation)._replace(
            run=batch.run,
            number=self._number,
            dropped=self._dropped,
            **batch.times.in_microseconds(),
            version=batch.version,
            environments=self._columns,
            faults=batch.faults,
            **self._use.newest().in_header(),
        )
        is_repeat, self._unconfirmed = self._unconfirmed == client.nonce, client.nonce
        # If there are several learners, another one whose queue is not full may need this actor.
        timeout = self._timeout if len(self._addresses) > 1 else None
        reply = client.enqueue(header, batch.contents, batch.episodes, is_repeat, timeout)
        self._unconfirmed, self._timeout = None, _CALL_SECONDS
        self._number += 1
        self.has_delivered |= bool(batch.contents) and reply != Reply.FOREIGN
        # A learner records nothing of a message that it refuses: the next one repeats the report.
        self._dropped = self._dropped + len(batch.contents) if reply == Reply.FOREIGN else 0
        if reply == Reply.FOREIGN and batch.run == client.run:
            self._say("another learner process answers: dropped the unrolls for the previous one")
            self._client = None

    def _drop(self, batch: UnrollBatch) -> None:
        """Drop a batch that another learner may have received, so that it is not trained twice."""
        self._unconfirmed = None
        self._number += 1
        self._dropped += len(batch.contents)
        self._say(
            f"{len(batch.contents)} unrolls dropped: the learner did not confirm that it has them"
        )

    def _follow_redirect(self, client: Client) -> bool:
        """Change to the learner named in the last reply, if any; return whether it changed."""
        to, client.next_learner = client.next_learner, None
        if not client.learners or to is None or to >= len(self._addresses) or to == self._learner:
            return False
        self._learner, self._client = to, None
        return True

    # -- turns in rounds

    def _claim_turn(self, client: Client) -> None:
        """Wait until the learner's round has columns for this actor, and for their policy."""
        header = client.header(self._identity["actor"], self._incarnation)
        header = header._replace(environments=self._columns)
        backoff = Backoff("for the next policy", self._say, self._stop_asked, silent=60.0)
        began, paused = time.monotonic(), False
        while not self._stop_asked.is_set():
            # The reply to the last unrolls may have granted columns already.
            if client.granted is None and client.claim(header) == Reply.FOREIGN:
                self._client = None
                return
            self.policy_wait = time.monotonic() - began
            if self._follow_redirect(client):
                return
            granted, client.granted = client.granted, None
            if granted is not None and self._puller.pull_exactly(client, granted):
                if paused:
                    self._waits.append(self.policy_wait)
                self._wants_turn = False
                self._turn_given.set()
                return
            pause = seconds_to_next_claim(self.policy_wait, min(self._waits, default=0.0))
            backoff.pause(pause, most=pause)
            paused = True

    # -- the connection

    def _connect(self) -> Client | None:
        """Wait for a learner that accepts this actor; return None if asked to stop."""
        backoff = Backoff(f"for {ports.in_words(self._addresses)}", self._say, self._stop_asked)
        missed, reason = 0, ""
        while not self._stop_asked.is_set():
            address = self._addresses[self._learner]
            try:
                client = Client(address, self._token)
                self._hello(client)
                parameters = self._first_policy(client, backoff)
            except Unreachable as error:
                self._learner = (self._learner + 1) % len(self._addresses)
                missed += 1
                reason = str(error) if isinstance(error, OtherRun) else reason
                if missed % len(self._addresses) == 0:
                    backoff.pause(0.2, most=5.0, why=reason)
                    reason = ""
                continue
            if parameters is None:
                break
            client.version, self._client = parameters.version, client
            self._say(f"joined the learner at {address}, policy version {client.version}")
            self.connected.set()
            return client
        return None

    def _first_policy(self, client: Client, backoff: Backoff) -> PulledParameters | None:
        """Wait for this learner's first policy and return it; return None if asked to stop."""
        while not self._stop_asked.is_set():
            if parameters := self._puller.pull_any(client):
                return parameters
            backoff.pause(0.2, most=5.0)
        return None

    def _hello(self, client: Client) -> None:
        own = {"incarnation": self._incarnation, "learners": self._addresses}
        if self._numbered_run:
            own["numbered"] = {"run": self._numbered_run, "first": self._numbers.first}
        answer = client.hello(self._identity | own)
        if client.learners:  # in the order of ranks, since replies name learners by rank
            address = self._addresses[self._learner]
            self._addresses, self._learner = client.learners, client.learners.index(address)
        if (count := len(answer["learners"])) > len(self._addresses) and not self._numbered_run:
            self._say(
                f"the run has {count} learners: name all of them in --learner_hosts, and give each "
                f"actor of the run a --task that no other has: actors with the same one play the "
                f"same games (impala_horovod_gym began at 0 for each learner)"
            )
        if answer["run_id"] != self._numbered_run:
            self._numbered_run = answer["run_id"]
            self._numbers = NumberRange(*answer["environments"])
        self._puller.join_cache(answer["run_id"])


def seconds_to_next_claim(waited: float, shortest: float) -> float:
    """Return the pause before a claim of columns is repeated, after `waited` seconds.

    Rounds last about equally long. So the pause is half of what is left of the shortest one of the
    last waits, and later a tenth of what this wait lasts longer: few claims come before there are
    columns, and the first one after that a few milliseconds later.
    """
    pause = (shortest - waited) / 2 if waited < shortest else (waited - shortest) / 10
    return min(max(pause, 0.002), 0.1)
