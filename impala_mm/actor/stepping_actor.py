"""An actor that only steps environments, and asks its learner for each action.

    observe   `_RemoteGroup.observe`   the step by the actions that the learner chose
    act       `_RemoteGroup.act`       send it to the learner, which writes the unroll (`inference`)

`actor.UnrollLoop` makes these steps, as it does with a network of the actor's own. While the
learner infers for one group, another steps, so stepping and waiting overlap in one thread. If the
learner is unreachable, the actor logs this, waits for it and starts over with resets: the learner
holds the core states of its episodes, so another learner could not continue them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from impala_mm.actor.actor import Group, UnrollLoop
from impala_mm.actor.failures import FaultCounter
from impala_mm.actor.stepper import EnvironmentStepper, numbered
from impala_mm.config import auto
from impala_mm.data import compression
from impala_mm.data.step_codec import ArraysCodec, StepCodec
from impala_mm.environments.types import Environments, Fault, Step
from impala_mm.runtime import lifecycle
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say
from impala_mm.runtime.machine import ProcessUse
from impala_mm.runtime.timing import Backoff
from impala_mm.transport.client import Client, Delivery, OtherRun, StreamLost, Unreachable
from impala_mm.transport.messages import (
    MAX_CONTENT,
    ActorTimes,
    MessageHeader,
    Reply,
    new_incarnation,
)

_LAST_STEP_SECONDS = 2.0  # the longest wait for a running step once the actor is asked to stop


def group_sizes(columns: int, observation: Any, mask: Any = (), agents: int = 1) -> list[int]:
    """Return the sizes of the groups: two, or more groups if a step would not fit into a message.

    The columns of an environment's `agents` stay together.
    Raises ValueError if a single observation does not fit.
    """
    one = StepCodec(observation, mask).size
    if one > MAX_CONTENT:
        raise ValueError(
            f"an observation of {one / 1e6:.1f} MB is too large to be sent for every step"
        )
    most = MAX_CONTENT // one
    count = columns // agents
    groups = auto.split_evenly(count, min(count, max(2, -(-columns // most))))
    return [n * agents for n in groups]


class SteppingActor(threading.Thread):
    """The playing thread of an actor that only steps.

    It is not the main thread, since Python handles no signals while the main thread waits for a
    call.
    """

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
        tell: Callable[[Fault], None] = lambda fault: None,
    ):
        """Play `groups`: each consists of environments that step together, and their number.

        `tell` informs the learner of faults.
        """
        super().__init__(name="playing", daemon=True)
        self._address = address
        self._incarnation = new_incarnation()
        self._identity, self._token, self._say, self._stop_asked = identity, token, say, stop
        self._groups, self.compress, self._tell = groups, compress, tell
        self._heartbeat = heartbeat
        self._dropped = 0  # unfinished unrolls that were lost, not yet reported to a learner
        self.waits = True  # whether it waits for a learner, not for an environment
        self.has_delivered = False  # whether the learner has the steps of an unroll
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Play until asked to stop, and reconnect whenever the learner was unreachable."""
        lifecycle.name_thread("playing")
        try:
            faults = FaultCounter(self._groups, self._heartbeat, self._say, self._tell)
            while not self._stop_asked.is_set():
                self.waits = True
                connection = None  # gRPC would give a new client its broken connection
                if connection := self._connect():
                    self._play(connection[0], connection[1], faults)
            faults.say_counts()
        except BaseException as error:
            self.failure = error

    def _play(self, client: Client, length: int, faults: FaultCounter) -> None:
        """Play unrolls of `length` steps until the learner is unreachable, or lost the groups."""
        groups = [
            _RemoteGroup(
                self,
                client,
                EnvironmentStepper(environments, length, self._heartbeat, begin),
                client.header(self._identity["actor"], self._incarnation, number)._replace(
                    environments=size
                ),
                StepCodec(environments.spec.observation, environments.spec.masks),
                ArraysCodec(environments.spec.actions.specs),
            )
            for number, begin, environments, size in numbered(self._groups)
        ]
        loop, use, begin = UnrollLoop(groups), ProcessUse(), time.perf_counter()
        groups[0].report = {"dropped": self._dropped}
        try:
            while True:
                loop.play()
                faults.after_unroll(sum(group.stepper.unbroken for group in groups))
                ready = time.perf_counter()
                times = ActorTimes(loop.acting, loop.stepping, playing=ready - begin)
                groups[-1].report = times.in_microseconds() | use.newest().in_header()
                groups[-1].report["faults"] = faults.new
                self.has_delivered, begin = True, ready
        except _Ended:
            pass
        except StreamLost:
            self._say("the learner no longer holds this actor's episodes: starting over")
        finally:
            if "dropped" not in groups[0].report:  # the learner was told
                self._dropped = 0
            self._dropped += sum(size for _, size in self._groups)
            threading.Thread(target=_keep_until_done, args=[client, groups], daemon=True).start()

    def refuse_after_end(self) -> None:
        """Raise _Ended if environments may not step any more: `run` has seen that none steps."""
        self.waits = False  # set before the check, and `run` reads it after `stop` is set
        if self._stop_asked.is_set():
            raise _Ended

    def wait_for_answer(self, client: Client, delivery: Delivery) -> bytes:
        """Return the learner's answer; raise _Ended if asked to stop, or if it is unreachable."""
        self.waits = True
        what = "for the learner's answer (its queue may be full, or it trains on a round)"
        backoff = Backoff(what, self._say, self._stop_asked, silent=10.0)
        asked = time.monotonic()
        while not self._stop_asked.is_set():
            try:
                reply = delivery.wait()
            except Unreachable as error:
                if not client.still_answers():
                    self._say(error.log_line)
                    break
                if not error.late:
                    self._say(f"the learner could not answer: {error}")
            else:
                if reply == Reply.FOREIGN:
                    raise StreamLost
                if reply != Reply.RUNNING:
                    return delivery.answer
            # In rounds, a policy is to be found soon after it is published.
            waited = time.monotonic() - asked
            backoff.pause(0.002, most=min(max(waited / 10, 0.002), 1.0))
        raise _Ended

    def _connect(self) -> tuple[Client, int] | None:
        """Return a connection to a learner that accepts this actor, and the length of unrolls.

        Return None if asked to stop.
        """
        backoff = Backoff(f"for the learner at {self._address}", self._say, self._stop_asked)
        while not self._stop_asked.is_set():
            # A hello that timed out may still arrive after the next one; the learner ignores it,
            # since its incarnation is smaller.
            self._incarnation += 1
            try:
                client = Client(self._address, self._token)
                answer = client.hello(self._identity | {"incarnation": self._incarnation})
            except Unreachable as error:
                reason = str(error) if isinstance(error, OtherRun) else ""
                backoff.pause(0.2, most=5.0, why=reason)
                continue
            self._say(f"joined the learner at {self._address}, which chooses the actions")
            return client, int(answer["length"])
        return None


class _Ended(Exception):
    """Raised to end the loop: the actor was asked to stop, or its learner is unreachable."""


class _RemoteGroup(Group):
    """Environments for which the learner chooses actions and writes the unrolls."""

    def __init__(
        self,
        actor: SteppingActor,
        client: Client,
        stepper: EnvironmentStepper,
        header: MessageHeader,
        codec: StepCodec,
        actions: ArraysCodec,
    ):
        """Send the group's steps; `header` is the header of its first message."""
        self.stepper, self.size, self._header = stepper, header.environments, header
        self._actor, self._client, self._codec, self._actions = actor, client, codec, actions
        self._step: Step | None = None  # the newest; None: the environments are to be reset
        self._asks = False  # whether the learner is to answer a message
        self.delivery: Delivery | None = None  # of the newest message
        self.report: dict[str, int] = {}  # fields of the next message's header

    def observe(self) -> bool:
        """Wait for the learner's actions, and step by them; at first reset."""
        self.waited = 0.0
        if not self._asks:
            if self._step is None:
                self._actor.refuse_after_end()
                self._step = self.stepper.reset()
            return False
        begin = time.perf_counter()
        assert self.delivery
        answer = self._actor.wait_for_answer(self._client, self.delivery)
        actions, self._asks = self._actions.decode(answer, self.size), False
        self.waited = time.perf_counter() - begin
        self._actor.refuse_after_end()
        self._step = self.stepper.step(actions)
        return self.stepper.between_unrolls

    def act(self) -> None:
        """Send the newest step, by which the learner chooses the next actions."""
        assert self._step
        content = self._actor.compress(self._codec.encode(self._step))
        header = self._header._replace(**self.report) if self.report else self._header
        self.delivery = Delivery(self._client, header, [content], self.stepper.episodes())
        self._header, self._asks = self._header._replace(number=self._header.number + 1), True
        self.report = {}


def _keep_until_done(client: Client, groups: Sequence["_RemoteGroup"]) -> None:
    """Hold a client until its calls have ended: TensorFlow crashes if it is freed earlier."""
    for group in groups:
        if group.delivery:
            group.delivery.wait_until_done()
    del client


def run(actor: SteppingActor, stop: threading.Event, heartbeat: Heartbeat) -> None:
    """Play until asked to stop, and wait for a running step: environments are closed next."""
    actor.start()
    while actor.is_alive() and not stop.is_set():
        actor.join(0.2)
        if actor.waits:
            heartbeat.beat()
    deadline = time.monotonic() + _LAST_STEP_SECONDS
    while actor.is_alive() and not actor.waits and time.monotonic() < deadline:
        actor.join(0.05)
    if actor.failure:
        raise actor.failure
