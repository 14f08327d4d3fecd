"""The step convention by its meaning: what V-trace learns games of ten steps to be worth.

Each game's observation says which step it is, so the network can know its value, and actions do
nothing, so the value is the environment's alone. The ten copies stand at ten different steps of
it, so that batches of even one step show all of it, and a few unrolls are all that can happen.
"""

import gymnasium
import in_process
import numpy as np
import pytest
import tensorflow as tf
from counting import level

from impala_mm.actor.actor import Player
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.make import make_environments

GAMMA, STEPS, UPDATES = 0.9, 10, 600
B = 5  # the observation that stays


class TenSteps(gymnasium.Env):
    """The number of the step, one-hot. The first seed says with which the first game begins."""

    observation_space = gymnasium.spaces.Box(0, 1, (STEPS + 1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self._done = 0 if seed is None else seed % STEPS
        return self._see(), {}

    def step(self, action):
        reward = self._reward()
        self._done += 1
        return self._see(), reward, *self._ends(self._done == STEPS), {}


class Terminated(TenSteps):
    """Each step brings 1, and the tenth is the last."""

    def _reward(self):
        return 1.0

    def _ends(self, last):
        return last, False

    def _see(self):
        return np.eye(STEPS + 1, dtype=np.float32)[self._done]


class Truncated(TenSteps):
    """Observations 0 to 4 bring nothing; then it is B for ever, which brings 1, but cut at 10."""

    def _reward(self):
        return float(self._done >= B)

    def _ends(self, last):
        return False, last

    def _see(self):
        return np.eye(STEPS + 1, dtype=np.float32)[min(self._done, B)]


each_length = pytest.mark.parametrize("length", [1, 3, STEPS, STEPS + 1])


def _learnt(game, length):
    """Trains on a game; every value it then gives in two games, by the observation's number."""
    settings = {
        "level_name": level(game),
        "unroll_length": length,
        "discounting": GAMMA,
        "optimizer": "adam",
        "learning_rate": 0.02,
        "epsilon": 1e-6,
        "loss_reduction": "mean",
    }
    config = Config(**settings)
    algorithm = in_process.make(config)
    update = in_process.updater(algorithm, config)
    player = Player(algorithm, [(make_environments(config.level_name, STEPS, seed=0), STEPS)])
    played = [player.play() for _ in range(STEPS + 1)]
    for i in range(UPDATES):
        update(played[i % len(played)], over=i / UPDATES)
    codec, seen = UnrollCodec(algorithm.unroll), {}
    for _ in range(-(-2 * (STEPS + 1) // length)):
        batch = in_process.decoded(codec, tf.constant(player.play()))
        numbers = np.argmax(batch.unrolls.observation, axis=-1).flat
        values = in_process.outputs(algorithm, batch).values.numpy().flat
        for number, value in zip(numbers, values, strict=True):
            seen.setdefault(int(number), []).append(float(value))
    return seen


@each_length
def test_a_termination_ends_the_value(length):
    """10 steps that bring 1 each, then nothing: 6.51 at the first."""
    values = _learnt(Terminated, length)
    truth = [sum(GAMMA**k for k in range(STEPS - done)) for done in range(STEPS)]
    assert truth[0] == pytest.approx(6.51, abs=0.01)
    for done in range(STEPS):  # the last observation, number 10, is no step's, and taught nothing
        assert values[done] == pytest.approx([truth[done]] * len(values[done]), abs=0.3), done


@each_length
def test_a_truncation_does_not(length):
    """The game would go on: 1 / (1 - 0.9) from B on, and 5.90 at the first, five steps before.

    Were the value cut at the truncation, B would be learnt as less than 5 and the first as less
    than 3.5; with the next game's first value for a bootstrap, as less than 7 and 4.1.
    """
    values = _learnt(Truncated, length)
    assert sorted(values) == [0, 1, 2, 3, 4, B]
    for done in range(B + 1):
        truth = GAMMA ** (B - done) / (1 - GAMMA)
        assert values[done] == pytest.approx([truth] * len(values[done]), abs=0.3), done
