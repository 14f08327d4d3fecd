"""Levels that break, as users' own environments do: each by its id in this module."""

import os
import threading
import time

import gymnasium
import numpy as np


class Works(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.zeros(2, np.float32), 1.0, self._steps == 10, False, {}


def make_processes(num_envs):
    """Return a vector of processes, which a test stops or kills."""
    return gymnasium.vector.AsyncVectorEnv([Works] * num_envs)


class BreaksInStep(Works):
    def step(self, action):
        return self._walk(action)

    def _walk(self, action):
        return self.no_such_map[action]


class BreaksInReset(Works):
    def reset(self, *, seed=None, options=None):
        raise OSError("no map")


class BreaksSometimes(Works):
    def step(self, action):
        if np.random.default_rng().random() < 1 / 500:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


class OnlyOne(Works):
    """A level whose second copy in a process cannot be made."""

    made = 0

    def __init__(self):
        OnlyOne.made += 1
        if OnlyOne.made > 1:
            raise OSError("no licence")


class StartsLate(Works):
    """A level that takes SLOW seconds for a copy, in actors."""

    made = 0

    def __init__(self):
        StartsLate.made += 1
        if StartsLate.made > 1:  # a learner makes one
            time.sleep(float(os.environ["SLOW"]))


class ClosesFiles(Works):
    """A level that closes all files of its process but the first three, also those of others."""

    def step(self, action):
        os.closerange(3, 4096)
        return super().step(action)


class StepHangs(Works):
    """A level whose step waits until a test lets it return."""

    wait = threading.Event().wait

    def step(self, action):
        self.wait()
        return super().step(action)


for _level in (
    *(Works, BreaksInStep, BreaksInReset, BreaksSometimes),
    *(OnlyOne, StartsLate, StepHangs, ClosesFiles),
):
    gymnasium.register(f"{_level.__name__}-v0", _level)
