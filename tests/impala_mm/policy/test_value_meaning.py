"""The step convention, tested by the values that V-trace learns for games of ten steps.

The observation is the number of the step, so that the network can represent the value, and actions
have no effect, so that the value depends on the environment alone. The ten copies stand at ten
different steps, so that a batch of one step shows all of the game.
"""

import gymnasium
import in_process
import numpy as np
import pytest
import tensorflow as tf
from counting import level

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.make import make_environments

GAMMA, STEPS, UPDATES = 0.9, 10, 400
B = 5  # the observation that stays


class TenSteps(gymnasium.Env):
    """A game without reward for 5 steps, then with reward 1 per step, which is cut after 10.

    It shows its step, one-hot, up to that of the first reward; the first seed sets the step of the
    first game.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (STEPS + 1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    terminates = False

    def reset(self, *, seed=None, options=None):
        self._done = 0 if seed is None else seed % STEPS
        return self._see(), {}

    def step(self, action):
        reward, self._done = float(self._done >= B), self._done + 1
        over = self._done == STEPS
        return self._see(), reward, over and self.terminates, over and not self.terminates, {}

    def _see(self):
        last = STEPS if self.terminates else B
        return np.eye(STEPS + 1, dtype=np.float32)[min(self._done, last)]


class Terminated(TenSteps):
    terminates = True


each_length = pytest.mark.parametrize(  # each trains for 5 s
    "length", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, STEPS, STEPS + 1))]
)


def _learnt(game, length):
    """Train on a game; return the values it then estimates in two games, by observation."""
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
    player = UnrollPlayer(algorithm, [(make_environments(config.level_name, STEPS, seed=0), STEPS)])
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
    values = _learnt(Terminated, length)
    for done in range(STEPS):  # the last observation, number 10, has no step after it
        truth = sum(GAMMA ** (k - done) for k in range(max(done, B), STEPS))
        assert values[done] == pytest.approx([truth] * len(values[done]), abs=0.3), done


@each_length
def test_a_truncation_does_not(length):
    """The game would continue, so B is worth 1 / (1 - 0.9), and the first step 5.90.

    If the value ended at the truncation, B would be below 5 and the first step below 3.5; with the
    next game's first value as bootstrap, below 7 and 4.1.
    """
    values = _learnt(TenSteps, length)
    assert sorted(values) == [0, 1, 2, 3, 4, B]
    for done in range(B + 1):
        truth = GAMMA ** (B - done) / (1 - GAMMA)
        assert values[done] == pytest.approx([truth] * len(values[done]), abs=0.3), done
