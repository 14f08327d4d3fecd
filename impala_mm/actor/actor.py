"""An actor: it observes, acts, writes and sends.

    observe   `EnvironmentStepper.finish_step`   the step that the last actions led to
    write     `UnrollWriter.write`               it into the unroll, with these actions
    act       `Act`                              on the newest entry, which starts the next step
    send      `LearnerLink.send`                 whole unrolls, while the next ones are played

`UnrollLoop.play` makes the steps of an unroll, by the parts of a step that a `Group` has. With a
network of the actor's own, `UnrollPlayer` is this loop, and `run` sends what it plays; what
features add to acting and to unrolls are hooks of its groups. With --inference=learner, the groups
are those of `stepping_actor`: to act is to send a step, and the learner writes it and answers.

An actor whose learner is unreachable logs this, waits, and continues with the next learner that
answers; it does not exit.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.actor.acting import Act
from impala_mm.actor.failures import FaultCounter
from impala_mm.actor.learner_link import LearnerLink, UnrollBatch, split_by_run
from impala_mm.actor.opponents import OpponentSettings, PolicyOpponents
from impala_mm.actor.policy_puller import PolicyVersion
from impala_mm.actor.stepper import EnvironmentStepper, numbered
from impala_mm.algorithms.feature import ActingHook, SendingHook, TeacherLoader
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.environment_flags import PAST
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.data.variables import ParameterLayout
from impala_mm.environments.turns import TurnVector
from impala_mm.environments.types import Environments, Fault
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say
from impala_mm.transport.messages import ActorTimes, NumberRange


def run(
    algorithm: Algorithm,
    groups: Sequence[tuple[Environments, int]],
    layout: ParameterLayout,
    link: LearnerLink,
    say: Say,
    stop: threading.Event,
    heartbeat: Heartbeat,
    tell: Callable[[Fault], None] = lambda fault: None,
    load_teachers: TeacherLoader = lambda settings: [],
    opponents: OpponentSettings | None = None,
) -> None:
    """Play and send the unrolls until asked to stop; `tell` the learner of faults.

    `load_teachers` and `opponents` are those of `UnrollPlayer`, and may raise UserMistake.

    Raises TooManyFaults if the environments produce nothing but faults.
    """
    link.start()
    while not link.connected.wait(0.2):
        heartbeat.beat()
        if link.failure:
            raise link.failure
        if stop.is_set():
            return
    player = UnrollPlayer(algorithm, groups, heartbeat, load_teachers, opponents)
    faults = FaultCounter(groups, heartbeat, say, tell)
    loaded: PolicyVersion | None = None
    numbers: NumberRange | None = None

    def load_policy() -> PolicyVersion:
        nonlocal loaded
        newest = link.newest
        assert newest
        if newest.policy != loaded:
            layout.assign_bytes(newest.vector)
            loaded = newest.policy
        return loaded

    begin = time.perf_counter()
    try:
        while link.wait_for_turn(heartbeat.beat):
            if numbers != (numbers := link.numbers):
                player.number(numbers)
            waited = time.perf_counter() - begin - link.policy_wait
            contents = player.play(load_policy)
            faults.after_unroll(player.whole)
            ready = time.perf_counter()
            times = ActorTimes(
                player.acting, player.stepping, waited, link.policy_wait, ready - begin
            )
            acted: PolicyVersion = player.policy
            played = UnrollBatch(acted.run, acted.version, [], player.episodes(), times, faults.new)
            for batch in split_by_run(played, contents, player.policies):
                if not link.send(batch, heartbeat.beat):
                    return
            begin = ready
    finally:
        faults.say_counts()
        player.close()


class Group:
    """E environments that step together, as the loop sees them wherever actions are chosen."""

    stepper: EnvironmentStepper
    size: int
    whole = 0  # environments that had no fault during the last unroll
    policies: Sequence[Any] = ()  # those that played the unrolls returned last
    at_unroll_start = False  # whether the next actions begin an unroll of this actor's policy
    waited = 0.0  # seconds that the last `observe` waited for actions

    def observe(self) -> bool:
        """Wait for the running step, if any; return whether it ends the unrolls."""
        raise NotImplementedError

    def act(self) -> None:
        """Choose the actions that follow the newest step, or request them."""
        raise NotImplementedError

    def take_unrolls(self, policy: Any) -> list[bytes]:
        """Return the unrolls that have ended, which `policy` played, if this process has them."""
        return []


class UnrollLoop:
    """The loop of an actor: its groups take turns, in unrolls.

    While actions are chosen for one group, here or at the learner, the others step.
    """

    def __init__(self, groups: Sequence[Group]):
        self._groups = groups
        self._turn = 0  # index of the group that acts next
        self._loaded_policy: Any = None
        self.policy: Any = None  # the result of `load_policy` for the unrolls that ended last
        self.policies: list[Any] = []  # its result for each of the unrolls returned last
        self.acting = self.stepping = 0.0  # seconds that each took during the last unrolls
        self.whole = 0  # environments that had no fault during the last unrolls

    def play(self, load_policy: Callable[[], Any] = lambda: None) -> list[bytes]:
        """Play T steps and return the unrolls of all environments that had no fault.

        Unrolls that wait for goals of later steps are returned by a later call.
        `load_policy` is called before the first action of an unroll, and may change the parameters:
        it then returns something else than the last time, or None.
        """
        contents: list[bytes] = []
        self.acting, self.stepping, self.whole, self.policies = 0.0, 0.0, 0, []
        first, last = self._groups[0], self._groups[-1]
        while True:
            group = self._groups[self._turn]
            begin = time.perf_counter()
            ends_unroll = group.observe()
            if ends_unroll:
                contents += group.take_unrolls(self.policy)
                self.policies += group.policies
                self.whole += group.whole
            self.acting += group.waited
            self.stepping += time.perf_counter() - begin - group.waited
            if ends_unroll and group is last:  # it acts in the next call of `play`
                return contents
            if group.at_unroll_start:
                if group is first:
                    self._load(load_policy)
                if group is last:  # the previous unrolls of all other groups are in `contents`
                    self.policy = self._loaded_policy
            begin = time.perf_counter()
            group.act()
            self.acting += time.perf_counter() - begin
            self._turn = (self._turn + 1) % len(self._groups)

    def _load(self, load_policy: Callable[[], Any]) -> None:
        self._loaded_policy = load_policy()

    def episodes(self) -> np.ndarray:
        """Return the episodes that ended since the last call, as the steppers do."""
        return np.concatenate([group.stepper.episodes() for group in self._groups])

    def close(self) -> None:
        """Wait for running steps and end their threads; only then may environments be closed."""
        for group in self._groups:
            group.stepper.close()


class UnrollPlayer(UnrollLoop):
    """The loop of an actor with a network of its own.

    With several groups each steps in a thread of its own, while the network acts for another.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        groups: Sequence[tuple[Environments, int]],
        heartbeat: Heartbeat | None = None,
        load_teachers: TeacherLoader = lambda settings: [],
        opponents: OpponentSettings | None = None,
    ):
        """Play `groups`: each consists of environments that step together, and their number.

        `load_teachers` returns the teachers that act at first, if a feature asks for them, and
        `opponents` play the other agents of environments whose agents take turns; None: at random.
        """
        sizes = {size for _, size in groups}
        turns = [
            (n, e) for n, (e, _) in enumerate(groups) if opponents and isinstance(e, TurnVector)
        ]
        sizes |= {len(environments.asked.reward) for _, environments in turns}
        acts = self._acts = {size: Act(algorithm, size) for size in sizes}
        heartbeat, threaded = heartbeat or Heartbeat(), len(groups) > 1
        features, (seed, _) = algorithm.features, tf.compat.v1.get_seed(0)
        self._opponents: dict[int, PolicyOpponents] = {}  # by group
        for number, environments in turns:
            rows = len(environments.asked.reward)
            state = tf.nest.flatten(algorithm.initial_state(rows))
            assert opponents
            self._opponents[number] = PolicyOpponents(
                environments, acts[rows], state, opponents, number
            )
        if opponents and PAST in opponents.weights and self._opponents:
            for version in opponents.restore_past(algorithm.variables):
                self._renew(version)
        length = algorithm.unroll.length
        self._own_groups = [
            _ActingGroup(
                algorithm,
                EnvironmentStepper(environments, length, heartbeat, begin, threaded),
                size,
                acts[size],
                features.acting_hooks(size, [seed, number], load_teachers),
                features.sending_hooks(algorithm.unroll, environments, size, [seed, number]),
            )
            for number, begin, environments, size in numbered(groups)
        ]
        super().__init__(self._own_groups)
        self.number(NumberRange(0, 1, sum(size for _, size in groups)))

    def number(self, numbers: NumberRange) -> None:
        """Give the environments their numbers in the run."""
        begin = 0
        for n, group in enumerate(self._own_groups):
            own = numbers.numbers(begin, group.size)
            group.number = [tf.constant(own), tf.constant(numbers.bound)]
            if n in self._opponents:
                self._opponents[n].number(own, numbers.bound)
            begin += group.size

    def _load(self, load_policy: Callable[[], Any]) -> None:
        before, self._loaded_policy = self._loaded_policy, load_policy()
        if self._loaded_policy is None or self._loaded_policy != before:
            self._renew(getattr(self._loaded_policy, "version", 0))

    def _renew(self, version: int) -> None:
        for act in self._acts.values():
            act.read_variables()
        for opponents in self._opponents.values():
            opponents.renew(version)


class _ActingGroup(Group):
    """Environments for which this process chooses actions, and their unfinished unrolls."""

    def __init__(
        self,
        algorithm: Algorithm,
        stepper: EnvironmentStepper,
        size: int,
        act: Act,
        acting: Sequence[ActingHook],
        sending: Sequence[SendingHook],
    ):
        self.stepper, self.size, self._act = stepper, size, act
        self._acting, self._sending = acting, sending
        self.number: list[tf.Tensor] = []  # the last argument of `act`
        state = algorithm.initial_state(size)
        self._state: list[tf.Tensor] = tf.nest.flatten(state)
        self._writer = UnrollWriter(algorithm.unroll, size, state)
        self._writer.write_reset(stepper.reset())
        # The actions of the running step, a nest of [E, ...], and their extras, a flat list.
        self._chosen: tuple[Any, list[tf.Tensor]] | None = None
        self.at_unroll_start = True

    def observe(self) -> bool:
        """Wait for the running step, if any, and write it."""
        if not self._chosen:
            return False
        step, chosen, self._chosen = self.stepper.finish_step(), self._chosen, None
        self.at_unroll_start = self._writer.write(step, *chosen)
        return self.at_unroll_start

    def act(self) -> None:
        """Choose the actions for the newest entries, and start the step that takes them."""
        writer = self._writer
        if writer.at_unroll_start:
            writer.set_start_state(self._state)
        actions, self._state, extras = self._act(writer.newest, self._state, self.number)
        for hook in self._acting:
            actions, extras = hook.take_over(writer.newest, actions, extras)
        self._chosen, self.at_unroll_start = (actions, extras), False
        self.stepper.start_step(actions)

    def take_unrolls(self, policy: Any) -> list[bytes]:
        """Return the unrolls that have ended."""
        unbroken = self._writer.unbroken
        self.whole, contents = len(unbroken), self._writer.take_unrolls()
        self.policies = [policy] * len(contents)
        for hook in self._sending:
            contents = hook.add(unbroken, contents, policy)
            self.policies = hook.policies
            self.whole -= hook.failed
        return contents
