"""An actor whose learner infers: it only steps environments, and asks for each action.

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
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.actor.stepper import EnvironmentStepper, FaultCounter
from impala_mm.config import auto
from impala_mm.data import compression
from impala_mm.data.step_codec import StepCodec
from impala_mm.environments.types import Environments, Step
from impala_mm.runtime import thread_names
from impala_mm.runtime.backoff import Backoff, Say
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.transport import messages
from impala_mm.transport.client import (
    Client,
    GroupUnknown,
    PendingInference,
    StillRunning,
    Unreachable,
)
from impala_mm.transport.messages import TRY_BITS, InferenceRequest


def group_sizes(num_envs: int, observation: tf.TensorSpec) -> list[int]:
    """Of the groups: two, or as many as it takes for a group's step to fit into a message.

    Raises ValueError where not one observation does.
    """
    each = StepCodec(observation).size
    if each > messages.MAX_CONTENT:
        raise ValueError(
            f"an observation of {each / 1e6:.1f} MB is too large to be sent for every step"
        )
    most = messages.MAX_CONTENT // each
    return auto.split_evenly(num_envs, min(num_envs, max(2, -(-num_envs // most))))


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
        pack: compression.Compress = compression.leave_uncompressed,
    ):
        """`groups`: environments that step together, and how many they are; each of their steps is
        sent as `pack` makes it.
        """
        super().__init__(name="playing", daemon=True)
        self._address = address
        self._life, self._tries = secrets.randbits(62 - TRY_BITS), 0
        self._identity, self._token, self._say, self._stop_asked = identity, token, say, stop
        self._groups, self._pack = groups, pack
        self._heartbeat = heartbeat
        self._dropped = 0  # unrolls that were begun and go nowhere, since a learner was told
        self.waits = True  # for a learner, and not for an environment
        self.failure: BaseException | None = None

    def run(self) -> None:
        """The thread: until told to stop, whatever the learners do."""
        thread_names.name_thread("playing")
        try:
            faults = FaultCounter([environments for environments, _ in self._groups], self._say)
            while not self._stop_asked.is_set():
                self.waits = True
                client, incarnation, length = self._connect()
                if client:
                    self._play(client, incarnation, length, faults)
        except BaseException as error:
            self.failure = error

    def _play(self, client: Client, incarnation: int, length: int, faults: FaultCounter) -> None:
        """Until the learner is away, or knows nothing of what was begun."""
        turns = [
            _GroupRequests(
                EnvironmentStepper(environments, length, self._heartbeat),
                InferenceRequest(
                    client.nonce, self._identity["actor"], incarnation, i, -1, 0, 0, 0, 0, 0, e
                ),
                StepCodec(environments.spec.observation),
                self._pack,
            )
            for i, (environments, e) in enumerate(self._groups)
        ]
        clock = _ActorClock()
        try:
            for turn in turns:  # the first says what was dropped
                self.waits = False
                step = turn.stepping.reset()
                self.waits = True
                turn.ask(client, step, {"dropped": self._dropped})
                self._dropped = 0
            while not self._stop_asked.is_set():
                for turn in turns:
                    asked = time.perf_counter()
                    actions = self._answer(client, turn)
                    clock.waited += time.perf_counter() - asked
                    if actions is None:
                        return
                    self.waits = False
                    step = turn.stepping.step(actions)
                    said = {}
                    if turn.stepping.between_unrolls and turn is turns[-1]:
                        faults.after_unroll()
                        said = clock.times(turns)
                    turn.ask(client, step, said)
                    self.waits = True
        except GroupUnknown:
            self._say("the learner does not know what was begun: all begins anew")
        finally:
            self._dropped += sum(turn.asking.environments for turn in turns)
            threading.Thread(target=_keep_until_settled, args=[client, turns], daemon=True).start()

    def _answer(self, client: Client, turn: "_GroupRequests") -> np.ndarray | None:
        """The actions, int32 [E]; None when told to stop, or where the learner is away."""
        what = "for the learner's answer (its queue may be full)"
        waiting = Backoff(what, self._say, self._stop_asked, silent=10.0)
        while not self._stop_asked.is_set():
            try:
                return turn.actions()
            except StillRunning:
                waiting.pause(0.01, most=1.0)
            except Unreachable as error:
                if not client.is_there():
                    self._say(f"the learner does not answer ({error}); trying again")
                    break
                if not error.late:
                    self._say(f"the learner could not answer: {error}")
                waiting.pause(0.01, most=1.0)
        return None

    def _connect(self) -> tuple[Client | None, int, int]:
        """(a learner that takes us, this incarnation, steps of an unroll); None: told to stop."""
        waiting = Backoff(f"for the learner at {self._address}", self._say, self._stop_asked)
        while not self._stop_asked.is_set():
            # Later ones are greater: a hello that its caller gave up may be heard after the next.
            self._tries += 1
            incarnation = (self._life << TRY_BITS) + self._tries
            try:
                client = Client(self._address, self._token)
                me = {"incarnation": incarnation, "host": socket.gethostname()}
                answer = client.hello(self._identity | me)
            except Unreachable:
                waiting.pause(0.2, most=5.0)
                continue
            self._say(f"joined the learner at {self._address}, which acts for it")
            return client, incarnation, int(answer["length"])
        return None, 0, 0


class _GroupRequests:
    """A group, and what it asked for."""

    def __init__(
        self,
        stepping: EnvironmentStepper,
        asking: InferenceRequest,
        codec: StepCodec,
        pack: compression.Compress,
    ):
        self.stepping, self.asking, self._codec, self._pack = stepping, asking, codec, pack
        self._asked: PendingInference | None = None

    def ask(self, client: Client, step: Step, said: dict[str, int]) -> None:
        """For the actions after this step; `said` are fields of `InferenceRequest`."""
        blank = self.asking._replace(dropped=0, acting=0, stepping=0, waiting=0, playing=0)
        self.asking = blank._replace(number=blank.number + 1, **said)
        episodes, content = self.stepping.episodes(), self._pack(self._codec.encode(step))
        self._asked = PendingInference(client, self.asking, content, episodes)

    def actions(self) -> np.ndarray:
        """Waits for them."""
        assert self._asked
        return self._asked.actions()

    def settle(self) -> None:
        """Waits until nothing is on its way any more."""
        if self._asked:
            self._asked.settle()


def _keep_until_settled(client: Client, turns: Sequence[_GroupRequests]) -> None:
    """Holds a client until its calls are over: TensorFlow crashes where it is freed before."""
    for turn in turns:
        turn.settle()
    del client


class _ActorClock:
    """What this thread did with its time; waiting for actions is acting, here."""

    def __init__(self) -> None:
        self.waited, self._stepped, self._since = 0.0, 0.0, time.perf_counter()

    def times(self, turns: Sequence[_GroupRequests]) -> dict[str, int]:
        """Since it was asked last, in microseconds."""
        now, stepped = time.perf_counter(), sum(turn.stepping.seconds for turn in turns)
        seconds = {
            "acting": self.waited,
            "stepping": stepped - self._stepped,
            "playing": now - self._since,
        }
        self.waited, self._stepped, self._since = 0.0, stepped, now
        return {name: round(1e6 * value) for name, value in seconds.items()}


def run(actor: SteppingActor, stop: threading.Event, heartbeat: Heartbeat) -> None:
    """Plays until told to stop."""
    actor.start()
    while actor.is_alive() and not stop.is_set():
        actor.join(0.2)
        if actor.waits:
            heartbeat.beat()
    if actor.failure:
        raise actor.failure
