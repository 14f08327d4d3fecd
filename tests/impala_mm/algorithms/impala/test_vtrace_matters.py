"""IMPALA learns from another policy's experience only with V-trace's ratios.

The actors always play Catch at random, and the learner trains on their unrolls again and again. The
values of the random policy would suffice: a policy that is greedy by them catches every ball, as
dynamic programming over the game shows. So the two runs do not differ in their targets but in where
learning ends. Without ratios, a step that the learnt policy would never make changes the policy as
much as at the start: logits grow without end (their spread is about 200, against 20), the network
saturates, and the policy misses the balls of one to three of the five columns for ever. With ratios
such a step has no weight, and the other steps change nothing once the policy is right. The mean
returns over five seeds are 1.00 with ratios, and -0.24 to 0.61 without.
"""

import in_process
import numpy as np
import pytest
import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.data.variables import Variables
from impala_mm.environments.make import make_environments

UPDATES, GROUPS, ENVS, GAMES = 600, 100, 16, 500


class AtRandom(Algorithm):
    """A uniformly random policy that records equal logits, as IMPALA's actor would."""

    variables = Variables([], [], [])

    def __init__(self, algorithm):
        self.unroll, self.initial_state = algorithm.unroll, algorithm.initial_state

    def act(self, entry, core_state, exploration):
        logits = tf.zeros([*entry.reward.shape, 3])
        action = tf.random.uniform(entry.reward.shape, 0, 3, tf.int32)
        return action, core_state, logits


def _trained(config, data, changed):
    """Return IMPALA after UPDATES updates on `data`, whose batches `changed` may change."""
    algorithm = in_process.make(config)
    update = in_process.updater(algorithm, config, lambda batch: changed(algorithm, batch))
    for i in range(UPDATES):
        update(data[i % GROUPS], over=0)
    return algorithm


def _as_recorded(algorithm, batch):
    return batch


def _as_if_its_own(algorithm, batch):
    """Replace the behaviour's logits by the learner's, so that every log-ratio is 0."""
    logits = tf.stop_gradient(in_process.outputs(algorithm, batch).logits)
    own = tf.concat([logits[:1], logits[:-1]], axis=0)  # entry t's action was chosen at t - 1
    return batch._replace(unrolls=batch.unrolls._replace(extras=own))


def _greedy_return(algorithm):
    """Return the mean return of the most likely actions over GAMES games of nine steps."""
    playing = make_environments("catch", GAMES, seed=777)
    state, greedily = algorithm.initial_state(GAMES), tf.zeros([GAMES])
    step, action = playing.reset(), np.zeros([GAMES], np.int32)
    for _ in range(9):
        read = [step.reward, None, None, step.observation, step.first, None]
        action = algorithm.act(Entry(action, *read), state, greedily)[0].numpy()
        step = playing.step(action)
    assert step.terminated.all()
    return float(step.reward.mean())


def _with_and_without(seed):
    config = Config(
        level_name="catch",
        seed=seed,
        unroll_length=20,
        optimizer="adam",
        learning_rate=0.003,
        epsilon=1e-6,
        loss_reduction="mean",
    )
    actor = AtRandom(in_process.make(config))
    playing = UnrollPlayer(actor, [(make_environments("catch", ENVS, seed=1000 * seed), ENVS)])
    data = [playing.play() for _ in range(GROUPS)]
    runs = [_trained(config, data, changed) for changed in (_as_recorded, _as_if_its_own)]
    return tuple(map(_greedy_return, runs))


@pytest.mark.slow
def test_random_play_teaches_catch_only_through_the_ratios():
    corrected, uncorrected = _with_and_without(seed=1)
    assert corrected > 0.95
    assert uncorrected < corrected - 0.3
