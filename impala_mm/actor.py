"""An actor: plays a batch of environments, and sends what happened to its learner.

One unroll's path begins here: `Player.play` fills it step by step, `Link` sends it through
`transport` while the next one is played, and brings newer parameters back. The learner takes it
from its queue (`learner.py`). An actor whose learner is away waits, says so, and goes on with the
next that answers; it never ends for that.
"""

import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm import transport
from impala_mm.algorithms import Algorithm
from impala_mm.environments import Environments, Step
from impala_mm.parameters import Layout
from impala_mm.trajectory import Codec, Entry, Unroll

_FAULTS = 10  # environments rebuilt within the last 1,000 unrolls before the actor gives up
Say = Callable[[str], None]


class Stopped(Exception):
    """The actor cannot go on; says why."""


class Player:
    """Steps E environments by a policy, and cuts what happens into unrolls."""

    def __init__(self, algorithm: Algorithm, environments: Environments, num_envs: int):
        self._environments = environments
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
        step = environments.reset()
        for t in range(spec.overlap):  # before the first step there is nothing but a reset
            self._write(t, step, np.zeros([num_envs], np.int32), None)

    def play(self) -> list[bytes]:
        """Plays T steps; the unrolls of all environments that came through them whole."""
        for environment in map(int, np.flatnonzero(self._broken)):
            self._rebuild(environment)
        start = tf.nest.map_structure(np.asarray, self._states[0])
        for t in range(self._overlap, self._overlap + self._length):
            action, self._state, extras = self._act(self._entry(t - 1), self._state)
            self._states = [*self._states[1:], self._state]
            actions = action.numpy()
            step = self._environments.step(actions)
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
        step = self._environments.rebuild(environment)
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


class Link(threading.Thread):
    """The actor's connection, in a thread of its own: sends unrolls and fetches parameters."""

    def __init__(
        self, address: str, identity: dict[str, Any], token: str, pull_secs: float, say: Say
    ):
        super().__init__(name="link", daemon=True)
        self._address, self._identity, self._token = address, identity, token
        self._pull_secs = pull_secs
        self._say = say
        self._groups: queue.Queue = queue.Queue(maxsize=1)
        self._incarnation = secrets.randbits(62)
        self._sequence = 0
        self._client: transport.Client | None = None
        self._pulled_at = -np.inf
        self._stop = threading.Event()
        # For the player: the learner's nonce, the version, and the vector of its parameters.
        self.newest: tuple[int, int, bytes] | None = None
        self.failure: BaseException | None = None
        self.connected = threading.Event()

    def send(self, nonce: int, version: int, contents: list[bytes], episodes: np.ndarray) -> bool:
        """Hands a group over; waits while the one before is still on its way."""
        while not self._stop.is_set():
            if self.failure:
                raise self.failure
            try:
                self._groups.put((nonce, version, contents, episodes), timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def stop(self) -> None:
        """Lets the thread end; what it was sending is dropped."""
        self._stop.set()

    def run(self) -> None:
        """Connects, then sends each group and pulls after it; from the start when that fails."""
        try:
            group = None
            while not self._stop.is_set():
                client = self._client or self._connect()
                if client is None:
                    return
                try:
                    if group is None:
                        group = self._next_group()
                    if group:
                        self._send(client, *group)
                        group = None
                    self._pull(client)
                except transport.Unreachable as error:
                    self._say(f"the learner does not answer ({error}); trying again")
                    self._client = None
        except BaseException as error:
            self.failure = error

    def _next_group(self) -> tuple | None:
        try:
            return self._groups.get(timeout=0.2)
        except queue.Empty:
            return None

    def _send(
        self,
        client: transport.Client,
        nonce: int,
        version: int,
        contents: list[bytes],
        episodes: np.ndarray,
    ) -> None:
        header = transport.Header(
            nonce, self._identity["actor"], self._incarnation, self._sequence, version, 0
        )
        client.enqueue(header, contents, episodes)
        self._sequence += 1

    def _pull(self, client: transport.Client) -> None:
        """Fetches the newest parameters if there are newer ones and the last pull is long ago."""
        have = self.newest[1] if self.newest else -1
        now = time.monotonic()
        if client.version > have and now - self._pulled_at >= self._pull_secs:
            self._pulled_at = now
            self.newest = (client.nonce, *client.get_parameters())

    def _connect(self) -> transport.Client | None:
        """Waits, for ever, for a learner that takes us; None when told to stop."""
        since, delay, said = time.monotonic(), 0.2, 0.0
        while not self._stop.is_set():
            try:
                client = transport.Client(self._address, self._token)
                me = {"incarnation": self._incarnation, "host": socket.gethostname()}
                client.hello(self._identity | me)
                version, vector = client.get_parameters()
            except transport.Unreachable:
                waited = time.monotonic() - since
                if waited - said >= 10 or not said:
                    said = max(waited, 0.1)
                    self._say(f"waits for the learner at {self._address} since {waited:.0f} s")
                self._stop.wait(delay)
                delay = min(delay * 1.5, 5.0)
                continue
            client.version = version
            self.newest = client.nonce, version, vector
            self._client = client
            self._say(f"joined the learner at {self._address}, policy version {version}")
            self.connected.set()
            return client
        return None


def run(
    algorithm: Algorithm,
    environments: Environments,
    num_envs: int,
    layout: Layout,
    link: Link,
    say: Say,
    stop: threading.Event,
) -> None:
    """Plays until told to stop."""
    link.start()
    while not link.connected.wait(0.2):
        if link.failure:
            raise link.failure
        if stop.is_set():
            return
    player = Player(algorithm, environments, num_envs)
    loaded = (-1, -1)  # the learner's nonce and the version of the parameters in use
    faults: list[int] = []  # the unroll at which each fault was
    count = 0
    while not stop.is_set():
        assert link.newest
        nonce, version, vector = link.newest
        if (nonce, version) != loaded:
            layout.unpack(vector)
            loaded = nonce, version
        known = len(environments.faults)
        contents = player.play()
        count += 1
        for fault in environments.faults[known:]:
            say(f"{fault}; it is rebuilt, its unroll dropped")
            faults.append(count)
        faults = [f for f in faults if f > count - 1000]
        if len(faults) >= _FAULTS:
            raise Stopped(
                f"{len(faults)} faults of environments, the last: {environments.faults[-1]}"
            )
        if not link.send(nonce, version, contents, player.episodes()):
            return
