"""Levels with the bugs that users' environments have, each registered as NAME-v0."""

import ctypes
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Sound(gymnasium.Env):
    """An environment without a bug, whose episodes take ten steps."""

    observation_space = Box(0, 1, (2,), np.float32)
    action_space = Discrete(3)
    shown = None  # the observation of each step, instead of a random one
    reward = 1.0
    info = {}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.random(2, np.float32), self.info

    def step(self, action):
        self.time += 1
        return self.see(), self.reward, self.time == 10, False, {}

    def see(self):
        return self.np_random.random(2, np.float32) if self.shown is None else self.shown


class ResetRaises(Sound):
    def reset(self, *, seed=None, options=None):
        return self._start(), {}

    def _start(self):
        return {}["door"]


class NoSeed(Sound):
    def reset(self):
        return super().reset()


class StepRaises(Sound):
    def see(self):
        return self.nosuch if self.time == 4 else super().see()


class OldStep(Sound):
    def step(self, action):
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


class OldReset(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class NoActionSpace(gymnasium.Env):
    observation_space = Sound.observation_space


class OtherSpace(Sound):
    observation_space = 4


class WrongShape(Sound):
    shown = np.zeros(3, np.float32)


class Doubles(Sound):
    shown = np.zeros(2)


class Lists(Sound):
    shown = [0.0, 1.0]  # noqa: RUF012


class NotANumber(Sound):
    shown = np.array([0, np.nan], np.float32)


class OutOfBounds(Sound):
    shown = np.array([0.5, -0.25], np.float32)


class NoSuchState(Sound):
    observation_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    shown = 4


class InfiniteReward(Sound):
    reward = np.float32("inf")


class ArrayReward(Sound):
    reward = np.ones(1)


class NumberAsEnd(Sound):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, 0, info


class NoInfo(Sound):
    info = None


class Unseeded(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class MaskInInfo(Sound):
    info = {"action_mask": np.array([1, 0, 1], np.int8)}  # noqa: RUF012


class MaskInStep(Sound):
    def step(self, action):
        return (*super().step(action)[:4], {"action_mask": np.ones(3, np.int8)})


class MaskForbidsAll(Sound):
    def action_masks(self):
        return np.arange(3) < self.time - 3 if self.time == 3 else np.array([True, False, True])


class MaskTooLong(Sound):
    observation_space = Dict(seen=Sound.observation_space, action_mask=Box(0, 1, (4,), np.int8))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}

    def see(self):
        return {"seen": np.zeros(2, np.float32), "action_mask": np.ones(4, np.int8)}


class MaskOfTwos(Sound):
    def action_masks(self):
        return [2, 2, 0]


class MaskOfNumbers(Sound):
    action_space = Box(0, 1, (3,))

    def action_masks(self):
        return [1, 1, 0]


class Exits(Sound):
    def see(self):
        print("the simulator has no licence", flush=True)
        os._exit(3)


class Crashes(Sound):
    def see(self):
        return ctypes.string_at(0)


class Hangs(Sound):
    def see(self):
        while self.time == 4:
            time.sleep(0.01)
        return super().see()


class Slow(Sound):
    def see(self):
        time.sleep(0.05)
        return super().see()


class Downloads(Sound):
    def __init__(self):
        file = Path(os.environ["DOWNLOAD"])
        try:
            file.touch()
            time.sleep(60)
        finally:
            file.unlink()


for _class in [NoActionSpace, Sound, *Sound.__subclasses__()]:
    gymnasium.register(f"{_class.__name__}-v0", _class)
