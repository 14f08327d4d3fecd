"""An actor that only steps environments, and asks its learner for each action.

Its environments are in groups. While the learner infers for one, another steps; so stepping and
waiting overlap, in one thread. What the learner does with a step is `inference`'s. An actor whose
learner is away waits, says so, and begins anew, with resets, when it is back: its games' states are
the learner's, so it goes to no other.
"""

import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.actor.stepper import EnvironmentStepper, FaultCounter
from impala_mm.config import auto
from impala_mm.data import compression
from impala_mm.data.step_codec import StepCodec
from impala_mm.environments.types import Environments, Step
from impala_mm.runtime import thread_names
from impala_mm.runtime.backoff import Backoff
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say
from impala_mm.transport.client import (
    Client,
    GroupUnknown,
    PendingInference,
    StillRunning,
    Unreachable,
)
from impala_mm.transport.messages import MAX_CONTENT, TRY_BITS, ActorTimes, InferenceRequest

_NO_NEWS = {"dropped": 0, **ActorTimes().in_microseconds()}  # fields of a request


def group_sizes(num_envs: int, observation: tf.TensorSpec) -> list[int]:
    """Return the sizes of the groups: two, or as many as it takes for a step to fit a message.

    Raises ValueError where not one observation does.
    """
    each = StepCodec(observation).size
    if each > MAX_CONTENT:
        raise ValueError(
            f"an observation of {each / 1e6:.1f} MB is too large to be sent for every step"
        )
    most = MAX_CONTENT // each
    return auto.split_evenly(num_envs, min(num_envs, max(2, -(-num_envs // most))))


class _Connection(NamedTuple):
    """To a learner that takes this actor."""

    client: Client
    incarnation: int
    length: int  # steps of an unroll


class SteppingActor(threading.Thread):
    """Plays, in a thread of its own: signals reach Python only where no call is waited for."""

    def __init__(
        self,
        address: str,
        identity: dict[str, Any],
        token: str,
        groups: Sequence[tuple[Environments, int]],
        say: Say,
        stop: threading.Event,
        heartbeat: Heartbeat,
        compress: compression.Compress = compression.leave_uncompressed,
    ):
        """`groups`: environments that step together, and how many they are."""
        super().__init__(name="playing", daemon=True)
        self._address = address
        self._life, self._tries = secrets.randbits(62 - TRY_BITS), 0
        self._identity, self._token, self._say, self._stop_asked = identity, token, say, stop
        self._groups, self._compress = groups, compress
        self._heartbeat = heartbeat
        self._dropped = 0  # unrolls that were begun and go nowhere, since a learner was told
        self.waits = True  # for a learner, and not for an environment
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Play until told to stop, whatever the learners do."""
        thread_names.name_thread("playing")
        try:
            faults = FaultCounter([environments for environments, _ in self._groups], self._say)
            while not self._stop_asked.is_set():
                self.waits = True
                if connection := self._connect():
                    self._play(connection, faults)
        except BaseException as error:
            self.failure = error

    def _play(self, connection: _Connection, faults: FaultCounter) -> None:
        """Play until the learner is away, or does not know what was begun."""
        client = connection.client
        groups = [
            _SteppedGroup(
                EnvironmentStepper(environments, connection.length, self._heartbeat),
                self._first_request(connection, number, size),
                StepCodec(environments.spec.observation),
                self._compress,
            )
            for number, (environments, size) in enumerate(self._groups)
        ]
        clock = _Clock()
        try:
            for group in groups:  # the first request says what was dropped
                self.waits = False
                step = group.stepper.reset()
                self.waits = True
                group.request_actions(client, step, {"dropped": self._dropped})
                self._dropped = 0
            while not self._stop_asked.is_set():
                for group in groups:
                    asked = time.perf_counter()
                    actions = self._wait_for_actions(client, group)
                    clock.waited += time.perf_counter() - asked
                    if actions is None:
                        return
                    self.waits = False
                    step = group.stepper.step(actions)
                    news: dict[str, int] = {}
                    if group.stepper.between_unrolls and group is groups[-1]:
                        faults.after_unroll()
                        news = clock.times(groups).in_microseconds()
                    group.request_actions(client, step, news)
                    self.waits = True
        except GroupUnknown:
            self._say("the learner does not know what was begun: all begins anew")
        finally:
            self._dropped += sum(group.request.environments for group in groups)
            threading.Thread(target=_keep_until_done, args=[client, groups], daemon=True).start()

    def _first_request(self, connection: _Connection, number: int, size: int) -> InferenceRequest:
        """Return the request before a group's first."""
        assert connection.client.nonce is not None
        return InferenceRequest(
            nonce=connection.client.nonce,
            actor=self._identity["actor"],
            incarnation=connection.incarnation,
            group=number,
            number=0,
            **_NO_NEWS,
            environments=size,
        )

    def _wait_for_actions(self, client: Client, group: "_SteppedGroup") -> np.ndarray | None:
        """Return int32 [E]; None when told to stop, or where the learner is away."""
        what = "for the learner's answer (its queue may be full)"
        backoff = Backoff(what, self._say, self._stop_asked, silent=10.0)
        while not self._stop_asked.is_set():
            try:
                return group.wait_for_actions()
            except StillRunning:
                backoff.pause(0.01, most=1.0)
            except Unreachable as error:
                if not client.still_answers():
                    self._say(f"the learner does not answer ({error}); trying again")
                    break
                if not error.late:
                    self._say(f"the learner could not answer: {error}")
                backoff.pause(0.01, most=1.0)
        return None

    def _connect(self) -> _Connection | None:
        """Wait for a learner that takes this actor; None when told to stop."""
        backoff = Backoff(f"for the learner at {self._address}", self._say, self._stop_asked)
        while not self._stop_asked.is_set():
            # Later ones are greater: a hello that its caller gave up may be heard after the next.
            self._tries += 1
            incarnation = (self._life << TRY_BITS) + self._tries
            try:
                client = Client(self._address, self._token)
                own = {"incarnation": incarnation, "host": socket.gethostname()}
                answer = client.hello(self._identity | own)
            except Unreachable:
                backoff.pause(0.2, most=5.0)
                continue
            self._say(f"joined the learner at {self._address}, which acts for it")
            return _Connection(client, incarnation, int(answer["length"]))
        return None


class _SteppedGroup:
    """A group of environments, and its request for actions."""

    def __init__(
        self,
        stepper: EnvironmentStepper,
        request: InferenceRequest,
        codec: StepCodec,
        compress: compression.Compress,
    ):
        self.stepper, self.request = stepper, request
        self._codec, self._compress = codec, compress
        self._pending: PendingInference | None = None

    def request_actions(self, client: Client, step: Step, news: dict[str, int]) -> None:
        """Ask for the actions after this step; `news` are fields of the request."""
        number = self.request.number + 1 if self._pending else 0
        self.request = self.request._replace(**_NO_NEWS | {"number": number} | news)
        episodes, content = self.stepper.episodes(), self._compress(self._codec.encode(step))
        self._pending = PendingInference(client, self.request, content, episodes)

    def wait_for_actions(self) -> np.ndarray:
        """Return them, int32 [E]."""
        assert self._pending
        return self._pending.wait_for_actions()

    def wait_until_done(self) -> None:
        """Wait until nothing is on its way any more."""
        if self._pending:
            self._pending.wait_until_done()


def _keep_until_done(client: Client, groups: Sequence[_SteppedGroup]) -> None:
    """Hold a client until its calls are over: TensorFlow crashes where it is freed before."""
    for group in groups:
        group.wait_until_done()
    del client


class _Clock:
    """What the playing thread did with its time; waiting for actions is acting, here."""

    def __init__(self) -> None:
        self.waited, self._stepped, self._since = 0.0, 0.0, time.perf_counter()

    def times(self, groups: Sequence[_SteppedGroup]) -> ActorTimes:
        """Return the times since the last call."""
        now, stepped = time.perf_counter(), sum(group.stepper.seconds for group in groups)
        times = ActorTimes(
            acting=self.waited, stepping=stepped - self._stepped, playing=now - self._since
        )
        self.waited, self._stepped, self._since = 0.0, stepped, now
        return times


def run(actor: SteppingActor, stop: threading.Event, heartbeat: Heartbeat) -> None:
    """Play until told to stop."""
    actor.start()
    while actor.is_alive() and not stop.is_set():
        actor.join(0.2)
        if actor.waits:
            heartbeat.beat()
    if actor.failure:
        raise actor.failure
