"""Catch that hangs after a second: --level_name=tests.helpers.hanging:Hanging-v0."""

import time

import gymnasium

from impala_mm.environments.small_games import Catch

_SECONDS = 1.0


class Hanging(Catch):
    begin = None  # time of the first step

    def step(self, action):
        self.begin = self.begin or time.monotonic()
        if time.monotonic() > self.begin + _SECONDS:
            time.sleep(1e6)
        time.sleep(0.005)
        return super().step(action)


gymnasium.register("Hanging-v0", Hanging)
