"""An actor: plays a batch of environments, and sends what happened to its learner.

One unroll's path begins here: `Player.play` fills it step by step, and `link` sends it through
`transport` while the next one is played, and brings newer parameters back. The learner takes it
from its queue (`learner.py`). An actor whose learner is away waits, says so, and goes on with the
next that answers; it never ends for that.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm import transport
from impala_mm.algorithms import Algorithm
from impala_mm.assembly import Assembly
from impala_mm.environments import Environments
from impala_mm.heartbeat import Heartbeat
from impala_mm.link import Group, Link
from impala_mm.parameters import Layout
from impala_mm.stepping import Faults, Stepping
from impala_mm.trajectory import Entry
from impala_mm.waiting import Say


class Player:
    """Steps E environments by a policy, and cuts what happens into unrolls."""

    def __init__(
        self,
        algorithm: Algorithm,
        environments: Environments,
        num_envs: int,
        heartbeat: Heartbeat | None = None,
    ):
        self._stepping = Stepping(environments, algorithm.unroll.length, heartbeat or Heartbeat())
        self._state = algorithm.initial_state(num_envs)
        self._assembly = Assembly(algorithm.unroll, num_envs, self._state)
        self._assembly.begin(environments.reset())
        self._act = _flat_act(algorithm, num_envs)
        self.acting = self.stepping = 0.0  # seconds that the last unrolls took, by part

    def play(self) -> list[bytes]:
        """Plays T steps; the unrolls of all environments that came through them whole."""
        assembly, whole = self._assembly, False
        stepped, acting = self._stepping.seconds, 0.0
        while not whole:
            asked = time.perf_counter()
            if assembly.starts:
                assembly.begins_with(self._state)
            action, self._state, extras = self._act(assembly.newest, self._state)
            actions = action.numpy()
            acting += time.perf_counter() - asked
            step = self._stepping.step(actions)
            whole = assembly.write(step, actions, extras)
        self.acting, self.stepping = acting, self._stepping.seconds - stepped
        return assembly.cut()

    def episodes(self) -> np.ndarray:
        """float32 [K, 3] of (1 for a whole game else 0, return, steps) that ended since."""
        return self._stepping.episodes()


def _flat_act(algorithm: Algorithm, num_envs: int) -> Callable[[Entry, Any], tuple[Any, Any, Any]]:
    """The algorithm's act for this many environments, as a function of (entry, core state).

    Called with flat tensors, and only with those fields that act() may read: tf.function's own
    handling of nested arguments costs more than a small network.
    """
    exploration = tf.ones([num_envs])
    step, state = algorithm.unroll.step, algorithm.initial_state(num_envs)
    read = (step.observation, step.reward, step.action, step.first)
    structure: list[Any] = []

    @tf.function(autograph=False)
    def act(observation, reward, action, first, *flat_state):
        entry = Entry(action, reward, None, None, observation, first, None)
        answer = algorithm.act(entry, tf.nest.pack_sequence_as(state, flat_state), exploration)
        structure[:] = [answer]
        return tf.nest.flatten(answer)

    concrete = act.get_concrete_function(
        *[tf.TensorSpec([num_envs, *s.shape], s.dtype) for s in read],
        *[tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(state)],
    )

    def call(entry: Entry, state: Any) -> tuple[Any, Any, Any]:
        arrays = (entry.observation, entry.reward, entry.action, entry.first)
        flat = concrete(*map(tf.constant, arrays), *tf.nest.flatten(state))
        return tf.nest.pack_sequence_as(structure[0], flat)

    return call


def run(
    algorithm: Algorithm,
    environments: Environments,
    num_envs: int,
    layout: Layout,
    link: Link,
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
    player = Player(algorithm, environments, num_envs, heartbeat)
    loaded = (-1, -1)  # the run and the version of the parameters in use
    faults = Faults(environments, say)
    begin, waited = time.perf_counter(), 0.0
    while not stop.is_set():
        assert link.newest
        newest = link.newest
        if (newest.run, newest.version) != loaded:
            layout.unpack(newest.vector)
            loaded = newest.run, newest.version
        contents = player.play()
        faults.after_unroll()
        ready = time.perf_counter()
        times = transport.Times(player.acting, player.stepping, waited, ready - begin)
        if not link.send(Group(*loaded, contents, player.episodes(), times), heartbeat.beat):
            return
        begin, waited = ready, time.perf_counter() - ready
