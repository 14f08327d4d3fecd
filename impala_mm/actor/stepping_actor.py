"""An actor that only steps environments, and asks its learner for each action.

    act            `_wait_for_actions`   for those that the learner chose from the last step
    observe        `stepper.step`        the step that they lead to
    write, send    `request_actions`     it to the learner, which writes the unroll (`inference`)

`SteppingActor._play` makes these steps, as `actor.Player` does with its own network. Its
environments are in groups. While the learner infers for one group, another steps, so stepping and
waiting overlap in one thread. If the learner is unreachable,
the actor logs this, waits for it and starts over with resets: the learner holds the core states of
its episodes, so another learner could not continue them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from impala_mm.actor.failures import FaultCounter
from impala_mm.actor.stepper import EnvironmentStepper
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


def group_sizes(num_envs: int, observation: Any, mask: Any = ()) -> list[int]:
    """Return the sizes of the groups: two, or more groups if a step would not fit into a message.

    Raises ValueError if a single observation does not fit.
    """
    each = StepCodec(observation, mask).size
    if each > MAX_CONTENT:
        raise ValueError(
            f"an observation of {each / 1e6:.1f} MB is too large to be sent for every step"
        )
    most = MAX_CONTENT // each
    return auto.split_evenly(num_envs, min(num_envs, max(2, -(-num_envs // most))))


class _Connection(NamedTuple):
    """A connection to a learner that accepted this actor."""

    client: Client
    length: int  # steps of an unroll


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
        self._groups, self._compress, self._tell = groups, compress, tell
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
                    self._play(connection, faults)
            faults.say_counts()
        except BaseException as error:
            self.failure = error

    def _play(self, connection: _Connection, faults: FaultCounter) -> None:
        """Play until the learner is unreachable, or has lost this actor's groups."""
        client = connection.client
        groups = [
            _SteppedGroup(
                EnvironmentStepper(environments, connection.length, self._heartbeat),
                client.header(self._identity["actor"], self._incarnation, number)._replace(
                    environments=size
                ),
                StepCodec(environments.spec.observation, environments.spec.masks),
                ArraysCodec(environments.spec.actions.specs),
                self._compress,
            )
            for number, (environments, size) in enumerate(self._groups)
        ]
        clock, use = _Clock(), ProcessUse()
        try:
            for group in groups:  # the first message reports the dropped unrolls
                if not self._may_step():
                    return
                step = group.stepper.reset()
                self.waits = True
                group.request_actions(client, step, dropped=self._dropped)
                self._dropped = 0
            while not self._stop_asked.is_set():
                for group in groups:
                    asked = time.perf_counter()
                    actions = self._wait_for_actions(client, group)
                    clock.waited += time.perf_counter() - asked
                    if actions is None or not self._may_step():
                        return
                    step = group.stepper.step(actions)
                    report: dict[str, int] = {}
                    if group.stepper.between_unrolls and group is groups[-1]:
                        faults.after_unroll()
                        report = clock.times(groups).in_microseconds() | {"faults": faults.new}
                        report |= use.newest().in_header()
                    group.request_actions(client, step, **report)
                    self.waits = True
                    self.has_delivered |= bool(report)
        except StreamLost:
            self._say("the learner no longer holds this actor's episodes: starting over")
        finally:
            self._dropped += sum(size for _, size in self._groups)
            threading.Thread(target=_keep_until_done, args=[client, groups], daemon=True).start()

    def _may_step(self) -> bool:
        """Return whether environments may step now: not after `run` has seen that none steps."""
        self.waits = False  # set before the check, and `run` reads it after `stop` is set
        return not self._stop_asked.is_set()

    def _wait_for_actions(self, client: Client, group: "_SteppedGroup") -> Any:
        """Return actions [E, ...]; None if asked to stop, or if the learner is unreachable."""
        what = "for the learner's answer (its queue may be full, or it trains on a round)"
        backoff = Backoff(what, self._say, self._stop_asked, silent=10.0)
        delivery, asked = group.delivery, time.monotonic()
        assert delivery
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
                    return group.decode_actions(delivery.answer)
            # In rounds, a policy is to be found soon after it is published.
            waited = time.monotonic() - asked
            backoff.pause(0.002, most=min(max(waited / 10, 0.002), 1.0))
        return None

    def _connect(self) -> _Connection | None:
        """Wait for a learner that accepts this actor; return None if asked to stop."""
        backoff = Backoff(f"for the learner at {self._address}", self._say, self._stop_asked)
        while not self._stop_asked.is_set():
            # A hello that timed out may still arrive after the next one; the learner ignores it,
            # since its incarnation is smaller.
            self._incarnation += 1
            try:
                client = Client(self._address, self._token)
                answer = client.hello(self._identity | {"incarnation": self._incarnation})
            except Unreachable as error:
                why = str(error) if isinstance(error, OtherRun) else ""
                backoff.pause(0.2, most=5.0, why=why)
                continue
            self._say(f"joined the learner at {self._address}, which chooses the actions")
            return _Connection(client, int(answer["length"]))
        return None


class _SteppedGroup:
    """A group of environments, and its newest message to the learner."""

    delivery: Delivery | None = None

    def __init__(
        self,
        stepper: EnvironmentStepper,
        header: MessageHeader,
        codec: StepCodec,
        actions: ArraysCodec,
        compress: compression.Compress,
    ):
        """Send the group's steps; `header` is the header of its first message."""
        self.stepper, self._header = stepper, header
        self._codec, self._actions, self._compress = codec, actions, compress

    def request_actions(self, client: Client, step: Step, **report: int) -> None:
        """Send a step to get the actions after it; `report` holds fields of the header."""
        content = self._compress(self._codec.encode(step))
        header = self._header._replace(**report) if report else self._header
        self.delivery = Delivery(client, header, [content], self.stepper.episodes())
        self._header = self._header._replace(number=self._header.number + 1)

    def decode_actions(self, answer: bytes) -> Any:
        """Return the actions [E, ...] in the learner's answer."""
        return self._actions.decode(answer, self._header.environments)


def _keep_until_done(client: Client, groups: Sequence[_SteppedGroup]) -> None:
    """Hold a client until its calls have ended: TensorFlow crashes if it is freed earlier."""
    for group in groups:
        if group.delivery:
            group.delivery.wait_until_done()
    del client


class _Clock:
    """The time of the playing thread, by activity; waiting for actions counts as acting."""

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
