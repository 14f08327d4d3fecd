"""An actor: plays a batch of environments, and sends what happened to its learner.

The path of an unroll begins here: `Player.play` steps the environments and writes their unrolls,
and `LearnerLink` sends them while the next ones are played, and fetches newer parameters. An actor
whose learner is away waits, says so, and goes on with the next that answers; it never ends for
that.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.actor.learner_link import LearnerLink, PolicyVersion, UnrollBatch
from impala_mm.actor.stepper import EnvironmentStepper, FaultCounter
from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.parameter_layout import ParameterLayout
from impala_mm.data.tensor_io import as_operation, pack, packed_spec, unpack
from impala_mm.data.trajectory import Entry
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments.types import Environments
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say
from impala_mm.transport.messages import ActorTimes

# From entries [E, ...] and a state to actions int32 [E], the state after and extras; both flat.
_Act = Callable[[Entry, list[tf.Tensor]], tuple[np.ndarray, list[tf.Tensor], list[tf.Tensor]]]


class Player:
    """Plays groups of environments by a policy, in unrolls.

    The groups take turns: while the network reads what one shows, the others step, each in a thread
    of its own. A single group needs none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        groups: Sequence[tuple[Environments, int]],
        heartbeat: Heartbeat | None = None,
    ):
        """`groups`: environments that step together, and how many they are."""
        acts = {size: _trace_act(algorithm, size) for size in {size for _, size in groups}}
        heartbeat, threaded = heartbeat or Heartbeat(), len(groups) > 1
        self._groups = [
            _PlayingGroup(
                algorithm,
                EnvironmentStepper(environments, algorithm.unroll.length, heartbeat, threaded),
                size,
                acts[size],
            )
            for environments, size in groups
        ]
        self._turn = 0  # the number of the group that is next
        self._loaded_policy: Any = None
        self.policy: Any = None  # what `load_policy` returned when the last unrolls began
        self.acting = self.stepping = 0.0  # seconds that the last unrolls took, by part

    def play(self, load_policy: Callable[[], Any] = lambda: None) -> list[bytes]:
        """Play T steps; return the unrolls of all environments that came through without a fault.

        `load_policy` is called before an unroll's first action, and may change the parameters.
        """
        contents: list[bytes] = []
        self.acting = self.stepping = 0.0
        first, last = self._groups[0], self._groups[-1]
        while True:
            group = self._groups[self._turn]
            begin = time.perf_counter()
            ended = group.write()
            self.stepping += time.perf_counter() - begin
            if ended is not None:
                contents += ended
                if group is last:  # it acts with the next call
                    return contents
            if group.at_unroll_start:
                if group is first:
                    self._loaded_policy = load_policy()
                if group is last:  # the unrolls that the others played until now are taken by now
                    self.policy = self._loaded_policy
            begin = time.perf_counter()
            group.act()
            self.acting += time.perf_counter() - begin
            self._turn = (self._turn + 1) % len(self._groups)

    def episodes(self) -> np.ndarray:
        """Return float32 [K, 3], (1 for a whole game else 0, return, steps), of what ended since
        the last call.
        """
        return np.concatenate([group.stepper.episodes() for group in self._groups])

    def close(self) -> None:
        """End the threads that step, once their steps are over: who closes environments waits."""
        for group in self._groups:
            group.stepper.close()


class _PlayingGroup:
    """E environments that step together, and the unrolls they are in."""

    def __init__(self, algorithm: Algorithm, stepper: EnvironmentStepper, size: int, act: _Act):
        self.stepper, self._act = stepper, act
        state = algorithm.initial_state(size)
        self._state: list[tf.Tensor] = tf.nest.flatten(state)
        self._writer = UnrollWriter(algorithm.unroll, size, state)
        self._writer.write_reset(stepper.reset())
        self._chosen: tuple[np.ndarray, list[tf.Tensor]] | None = None  # for the step that runs
        self.at_unroll_start = True

    def act(self) -> None:
        """Choose the actions that follow on the newest entries, and start their step."""
        writer = self._writer
        if writer.at_unroll_start:
            writer.set_start_state(self._state)
        actions, self._state, extras = self._act(writer.newest, self._state)
        self._chosen, self.at_unroll_start = (actions, extras), False
        self.stepper.start_step(actions)

    def write(self) -> list[bytes] | None:
        """Write the step that runs; return the unrolls where it ends them."""
        if not self._chosen:
            return None
        ended = self._writer.write(self.stepper.finish_step(), *self._chosen)
        self._chosen = None
        if not ended:
            return None
        self.at_unroll_start = True
        return self._writer.take_unrolls()


def _trace_act(algorithm: Algorithm, num_envs: int) -> _Act:
    """Return the algorithm's act for this many environments as one operation of flat tensors.

    The fields that act() may read go in as one tensor.
    """
    exploration = tf.ones([num_envs])
    step, state = algorithm.unroll.step, algorithm.initial_state(num_envs)
    read = [
        tf.TensorSpec([num_envs, *s.shape], s.dtype)
        for s in (step.observation, step.reward, step.action, step.first)
    ]
    length = len(tf.nest.flatten(state))

    @tf.function(autograph=False)
    def act(packed, *flat_state):
        observation, reward, action, first = unpack(packed, read)
        entry = Entry(action, reward, None, None, observation, first, None)
        before = tf.nest.pack_sequence_as(state, flat_state)
        chosen, after, extras = algorithm.act(entry, before, exploration)
        return [chosen, *tf.nest.flatten(after), *tf.nest.flatten(extras)]

    concrete = act.get_concrete_function(
        packed_spec(read),
        *[tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(state)],
    )
    operation = as_operation(concrete)

    def call(
        entry: Entry, flat: list[tf.Tensor]
    ) -> tuple[np.ndarray, list[tf.Tensor], list[tf.Tensor]]:
        packed = pack(entry.observation, entry.reward, entry.action, entry.first)
        chosen, *rest = operation(packed, *flat)
        return chosen.numpy(), rest[:length], rest[length:]

    return call


def run(
    algorithm: Algorithm,
    groups: Sequence[tuple[Environments, int]],
    layout: ParameterLayout,
    link: LearnerLink,
    say: Say,
    stop: threading.Event,
    heartbeat: Heartbeat,
) -> None:
    """Play, and send what is played, until told to stop."""
    link.start()
    while not link.connected.wait(0.2):
        heartbeat.beat()
        if link.failure:
            raise link.failure
        if stop.is_set():
            return
    player = Player(algorithm, groups, heartbeat)
    faults = FaultCounter([environments for environments, _ in groups], say)
    loaded: PolicyVersion | None = None

    def load_policy() -> PolicyVersion:
        nonlocal loaded
        newest = link.newest
        assert newest
        if newest.policy != loaded:
            layout.assign_bytes(newest.vector)
            loaded = newest.policy
        return loaded

    begin, waited = time.perf_counter(), 0.0
    try:
        while not stop.is_set():
            contents = player.play(load_policy)
            faults.after_unroll()
            ready = time.perf_counter()
            times = ActorTimes(player.acting, player.stepping, waited, ready - begin)
            run, version = player.policy
            unrolls = UnrollBatch(run, version, contents, player.episodes(), times)
            if not link.send(unrolls, heartbeat.beat):
                return
            begin, waited = ready, time.perf_counter() - ready
    finally:
        player.close()
