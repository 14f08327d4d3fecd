"""Environments that crash, hang or end their process, when their action is 3."""

import ctypes
import os
import time

import gymnasium
import numpy as np


class _Fine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        if action == 3:
            self._break()
        return self.np_random.random(2, np.float32), float(action), False, False, {}


class Raises(_Fine):
    def _break(self):
        raise ValueError("no way")


class Segfaults(_Fine):
    def _break(self):
        ctypes.string_at(0)


class Exits(_Fine):
    def _break(self):
        os._exit(7)


class Hangs(_Fine):
    def _break(self):
        time.sleep(60)


class HangsInC(_Fine):
    """A call that keeps the interpreter's lock, so that no other thread of the process runs."""

    def _break(self):
        ctypes.PyDLL(None).sleep(60)


class DoorsThatJam(_Fine):
    """The first reset in each process but the one that made the vector fails; it offers masks."""

    made_in = os.environ.setdefault("DOORS_MADE_IN", str(os.getpid()))
    resets = 0

    def reset(self, *, seed=None, options=None):
        type(self).resets += 1
        if self.resets == 1 and self.made_in != str(os.getpid()):
            raise ValueError("the door is stuck")
        return super().reset(seed=seed)[0], {"action_mask": np.array([1, 0, 1, 0])}

    def step(self, action):
        return *super().step(action)[:-1], {"action_mask": np.array([0, 1, 1, 0])}
