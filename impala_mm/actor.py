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
from impala_mm.environments import Environments, Step
from impala_mm.heartbeat import Heartbeat
from impala_mm.link import Group, Link, Say
from impala_mm.parameters import Layout
from impala_mm.trajectory import Codec, Entry, Unroll

_FAULTS = 10  # environments rebuilt within the last 1,000 unrolls before the actor gives up


class Stopped(Exception):
    """The actor cannot go on; says why."""


class Player:
    """Steps E environments by a policy, and cuts what happens into unrolls."""

    def __init__(
        self,
        algorithm: Algorithm,
        environments: Environments,
        num_envs: int,
        heartbeat: Heartbeat | None = None,
    ):
        self._environments = environments
        self._heartbeat, self._repeats = heartbeat or Heartbeat(), environments.spec.action_repeats
        spec = algorithm.unroll
        self._length, self._overlap = spec.length, spec.overlap
        self._codec = Codec(spec)
        self._entries: Entry = tf.nest.map_structure(
            lambda s: np.zeros(
                [spec.length + spec.overlap, num_envs, *s.shape], s.dtype.as_numpy_dtype
            ),
            spec.step,
        )  # [T+overlap, E, ...]
        self._state = algorithm.initial_state(num_envs)
        # The core state before each of the last `overlap` entries is read, oldest first.
        self._states = [self._state] * spec.overlap
        self._broken = np.zeros([num_envs], bool)
        self._act = _flat_act(algorithm, num_envs)
        self.acting = self.stepping = 0.0  # seconds that the last unrolls took, by part
        step = environments.reset()
        for t in range(spec.overlap):  # before the first step there is nothing but a reset
            self._write(t, step, np.zeros([num_envs], np.int32), None)

    def play(self) -> list[bytes]:
        """Plays T steps; the unrolls of all environments that came through them whole."""
        for environment in map(int, np.flatnonzero(self._broken)):
            self._rebuild(environment)
        start = tf.nest.map_structure(np.asarray, self._states[0])
        self.acting = self.stepping = 0.0
        for t in range(self._overlap, self._overlap + self._length):
            begin = time.perf_counter()
            action, self._state, extras = self._act(self._entry(t - 1), self._state)
            self._states = [*self._states[1:], self._state]
            actions = action.numpy()
            acted = time.perf_counter()
            step = self._environments.step(actions)
            self.stepping += time.perf_counter() - acted
            self.acting += acted - begin
            self._heartbeat.frames += int((~step.first).sum()) * self._repeats
            self._heartbeat.beat()
            self._broken |= step.fault
            self._write(t, step, actions, extras)
        contents = [
            self._codec.encode(
                Unroll(
                    tf.nest.map_structure(lambda a, e=e: a[:, e], self._entries),
                    tf.nest.map_structure(lambda a, e=e: a[e], start),
                )
            )
            for e in np.flatnonzero(~self._broken)
        ]
        for array in tf.nest.flatten(self._entries):
            array[: self._overlap] = array[self._length :]
        return contents

    def episodes(self) -> np.ndarray:
        """float32 [K, 3] of (1 for a whole game else 0, return, steps) that ended since."""
        finished = self._environments.episodes()
        return np.array(
            [(e.whole_game, e.episode_return, e.length) for e in finished], np.float32
        ).reshape([-1, 3])

    def _entry(self, t: int) -> Entry:
        return tf.nest.map_structure(lambda array: array[t], self._entries)

    def _write(self, t: int, step: Step, actions: np.ndarray, extras: Any) -> None:
        entries = self._entries
        entries.action[t], entries.reward[t] = actions, step.reward
        entries.terminated[t], entries.truncated[t] = step.terminated, step.truncated
        entries.observation[t], entries.first[t] = step.observation, step.first
        if extras is not None:
            tf.nest.map_structure(
                lambda array, value: array.__setitem__(t, value.numpy()), entries.extras, extras
            )

    def _rebuild(self, environment: int) -> None:
        """Makes a broken environment anew: its next unroll begins with a reset."""
        try:
            step = self._environments.rebuild(environment)
        except Exception as error:  # it stays broken, and this counts as one more fault
            what = " ".join(f"{type(error).__name__}: {error}".split())
            self._environments.faults.append(f"environment {environment}, made anew: {what}")
            return
        for t in range(self._overlap):
            for name in ("reward", "terminated", "truncated", "observation", "first"):
                getattr(self._entries, name)[t, environment] = getattr(step, name)[0]
        self._broken[environment] = False


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
    faults: list[int] = []  # the unroll at which each fault was
    count = known = 0
    begin, waited = time.perf_counter(), 0.0
    while not stop.is_set():
        assert link.newest
        newest = link.newest
        if (newest.run, newest.version) != loaded:
            layout.unpack(newest.vector)
            loaded = newest.run, newest.version
        contents = player.play()
        count += 1
        for fault in environments.faults[known:]:
            say(f"{fault}; it is made anew, its unroll dropped")
            faults.append(count)
        known = len(environments.faults)
        faults = [f for f in faults if f > count - 1000]
        if len(faults) >= _FAULTS:
            raise Stopped(
                f"{len(faults)} faults of environments, the last: {environments.faults[-1]}"
            )
        ready = time.perf_counter()
        times = transport.Times(player.acting, player.stepping, waited, ready - begin)
        if not link.send(Group(*loaded, contents, player.episodes(), times), heartbeat.beat):
            return
        begin, waited = ready, time.perf_counter() - ready
