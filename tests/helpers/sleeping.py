"""Catch as slow as a simulator, 2 ms per step: --level_name=tests.helpers.sleeping:Sleeping-v0."""

import time

import gymnasium

from impala_mm.environments.small_games import Catch


class Sleeping(Catch):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


gymnasium.register("Sleeping-v0", Sleeping)
