"""Environments with predictable steps, levels of a test's own, and a link that is always there."""

import itertools
import threading

import gymnasium
import numpy as np

from impala_mm.actor.policy_puller import PulledParameters
from impala_mm.transport.messages import NumberRange

KINDS = ((3, "truncated"), (3, "terminated"), (1, "terminated"))  # lengths and ends of episodes


class Counting(gymnasium.Env):
    """An environment that observes the number of earlier observations.

    The reward is the action. Episodes follow `kinds` in a cycle; the first seed selects the first
    one. A step before a reset is an error.
    """

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, kinds=KINDS):
        self._kinds = kinds
        self._episode = self._seen = -1
        self._left = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._episode = seed - 1
        self._episode += 1
        self._left, self._kind = self._kinds[self._episode % len(self._kinds)]
        return self._see(), {}

    def step(self, action):
        assert self._left, "stepped after its end"
        self._left -= 1
        end = None if self._left else self._kind
        return self._see(), float(action), end == "terminated", end == "truncated", {}

    def _see(self):
        self._seen += 1
        return np.array([self._seen], np.float32)


gymnasium.register("Counting-v0", Counting)

_numbers = itertools.count()


def level(make_one, **registered):
    """Register a level that `make_one` makes, and return its name."""
    name = f"Testing{next(_numbers)}-v0"
    gymnasium.register(name, make_one, **registered)
    return name


class StandingLink:
    """An actor's link whose turns have these policies, (run, version); the actor ends after them.

    `sent` has what was sent in each turn.
    """

    policy_wait, numbers, failure = 0.0, NumberRange(0, 1, 4), None

    def __init__(self, policies):
        self._policies, self.sent, self.connected = iter(policies), [], threading.Event()
        self.connected.set()

    def start(self):
        """Do nothing: it is connected."""

    def wait_for_turn(self, meanwhile):
        """Return whether there is another turn."""
        policy = next(self._policies, None)
        if policy:
            self.newest = PulledParameters(*policy, b"")
            self.sent.append([])
        return policy is not None

    def send(self, batch, meanwhile):
        """Take a batch."""
        self.sent[-1].append(batch)
        return True
