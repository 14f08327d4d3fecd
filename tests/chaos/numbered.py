"""An environment at a steady pace whose observations identify it: tests.chaos.numbered:Numbered.

An observation consists of bits: 48 of a random number of this instance, and 32 of the number of
observations that it has returned before. So the contents of an unroll show which steps it holds,
whatever transport and learner believe.
"""

import secrets
import time

import gymnasium
import numpy as np

INSTANCE_BITS, COUNT_BITS = 48, 32
_SECONDS = 0.02  # seconds of a step: the environments, not this machine's cores, set the rate
_LATEST = 0.2  # seconds of delay that later, shorter steps catch up with


class Numbered(gymnasium.Env):
    """An environment that rewards the action which follows from the number of its observation."""

    observation_space = gymnasium.spaces.Box(0, 1, (INSTANCE_BITS + COUNT_BITS,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self._instance = secrets.randbits(INSTANCE_BITS)
        self._count, self._left, self._due = -1, 0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(5, 60))
        return self._observe(), {}

    def step(self, action):
        self._left -= 1
        reward = float(action == self._count % 2)
        now = time.monotonic()
        self._due = max(self._due + _SECONDS, now - _LATEST)
        time.sleep(max(0.0, self._due - now))
        return self._observe(), reward, self._left == 0, False, {}

    def _observe(self):
        self._count += 1
        return np.array([*_bits(self._instance, INSTANCE_BITS), *_bits(self._count, COUNT_BITS)])


def decode(observation):
    """Return the instances' and the observations' numbers of observations [..., bits] as int64."""
    bits = observation.astype(np.int64)
    instance, count = bits[..., :INSTANCE_BITS], bits[..., INSTANCE_BITS:]
    return instance @ (1 << np.arange(INSTANCE_BITS)), count @ (1 << np.arange(COUNT_BITS))


def _bits(number, size):
    return (number >> np.arange(size) & 1).astype(np.float32)
