"""An actor: plays a batch of environments, and sends what happened to its learner.

One unroll's path begins here: `Player.play` fills it step by step, and `link` sends it through
`transport` while the next one is played, and brings newer parameters back. The learner takes it
from its queue (`learner.py`). An actor whose learner is away waits, says so, and goes on with the
next that answers; it never ends for that.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.actor.learner_link import LearnerLink, UnrollBatch
from impala_mm.actor.stepper import EnvironmentStepper, FaultCounter
from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.parameter_layout import ParameterLayout
from impala_mm.data.tensor_io import as_operation, pack, packed_spec, unpack
from impala_mm.data.trajectory import Entry
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments.types import Environments
from impala_mm.runtime.backoff import Say
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.transport import messages

# From entries [E, ...] and a state to actions int32 [E], the state after and extras; both flat.
_Act = Callable[[Entry, list[tf.Tensor]], tuple[np.ndarray, list[tf.Tensor], list[tf.Tensor]]]


class Player:
    """Steps groups of environments by a policy, and cuts what happens into unrolls.

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
        alive, aside = heartbeat or Heartbeat(), len(groups) > 1
        self._groups = [
            _PlayingGroup(
                algorithm,
                EnvironmentStepper(environments, algorithm.unroll.length, alive, aside),
                size,
                acts[size],
            )
            for environments, size in groups
        ]
        self._turn = 0  # whose
        self._loaded: Any = None
        self.acted_by: Any = None  # what `load` gave when the last unrolls began
        self.acting = self.stepping = 0.0  # seconds that the last unrolls took, by part

    def play(self, load: Callable[[], Any] = lambda: None) -> list[bytes]:
        """Plays T steps; the unrolls of all environments that came through them whole.

        `load` is called before an unroll's first action, and may change the policy.
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
            if group.begins:
                if group is first:
                    self._loaded = load()
                if group is last:  # what the others played until now, it has cut by now
                    self.acted_by = self._loaded
            begin = time.perf_counter()
            group.act()
            self.acting += time.perf_counter() - begin
            self._turn = (self._turn + 1) % len(self._groups)

    def episodes(self) -> np.ndarray:
        """float32 [K, 3] of (1 for a whole game else 0, return, steps) that ended since."""
        return np.concatenate([group.stepping.episodes() for group in self._groups])

    def close(self) -> None:
        """Ends the threads that step, once their steps are over: who closes environments waits."""
        for group in self._groups:
            group.stepping.close()


class _PlayingGroup:
    """A group."""

    def __init__(self, algorithm: Algorithm, stepping: EnvironmentStepper, size: int, act: _Act):
        self.stepping, self._act = stepping, act
        state = algorithm.initial_state(size)
        self._state: list[tf.Tensor] = tf.nest.flatten(state)
        self._assembly = UnrollWriter(algorithm.unroll, size, state)
        self._assembly.begin(stepping.reset())
        self._chosen: tuple[np.ndarray, list[tf.Tensor]] | None = None  # for the step that runs
        self.begins = True  # an unroll

    def act(self) -> None:
        """Chooses what follows on the newest entries, and starts that step."""
        assembly = self._assembly
        if assembly.starts:
            assembly.begins_with(self._state)
        actions, self._state, extras = self._act(assembly.newest, self._state)
        self._chosen, self.begins = (actions, extras), False
        self.stepping.start(actions)

    def write(self) -> list[bytes] | None:
        """What the step that runs brings; unrolls where it ends one."""
        if not self._chosen:
            return None
        whole = self._assembly.write(self.stepping.finish(), *self._chosen)
        self._chosen = None
        if not whole:
            return None
        self.begins = True
        return self._assembly.cut()


def _trace_act(algorithm: Algorithm, num_envs: int) -> _Act:
    """The algorithm's act for this many environments, from and to the core state's flat tensors.

    The fields that act() may read go in as one of them.
    """
    exploration = tf.ones([num_envs])
    step, state = algorithm.unroll.step, algorithm.initial_state(num_envs)
    read = [
        tf.TensorSpec([num_envs, *s.shape], s.dtype)
        for s in (step.observation, step.reward, step.action, step.first)
    ]
    length = len(tf.nest.flatten(state))

    @tf.function(autograph=False)
    def act(shown, *flat_state):
        observation, reward, action, first = unpack(shown, read)
        entry = Entry(action, reward, None, None, observation, first, None)
        before = tf.nest.pack_sequence_as(state, flat_state)
        chosen, after, extras = algorithm.act(entry, before, exploration)
        return [chosen, *tf.nest.flatten(after), *tf.nest.flatten(extras)]

    concrete = act.get_concrete_function(
        packed_spec(read),
        *[tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(state)],
    )
    chosen_by = as_operation(concrete)

    def call(
        entry: Entry, flat: list[tf.Tensor]
    ) -> tuple[np.ndarray, list[tf.Tensor], list[tf.Tensor]]:
        shown = pack(entry.observation, entry.reward, entry.action, entry.first)
        chosen, *rest = chosen_by(shown, *flat)
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
    """Plays until told to stop."""
    link.start()
    while not link.connected.wait(0.2):
        heartbeat.beat()
        if link.failure:
            raise link.failure
        if stop.is_set():
            return
    player = Player(algorithm, groups, heartbeat)
    faults = FaultCounter([environments for environments, _ in groups], say)
    loaded = (-1, -1)  # the run and the version of the parameters in use

    def load() -> tuple[int, int]:
        nonlocal loaded
        assert link.newest
        newest = link.newest
        if (newest.run, newest.version) != loaded:
            layout.unpack(newest.vector)
            loaded = newest.run, newest.version
        return loaded

    begin, waited = time.perf_counter(), 0.0
    try:
        while not stop.is_set():
            contents = player.play(load)
            faults.after_unroll()
            ready = time.perf_counter()
            times = messages.ActorTimes(player.acting, player.stepping, waited, ready - begin)
            number, version = player.acted_by
            unrolls = UnrollBatch(number, version, contents, player.episodes(), times)
            if not link.send(unrolls, heartbeat.beat):
                return
            begin, waited = ready, time.perf_counter() - ready
    finally:
        player.close()
