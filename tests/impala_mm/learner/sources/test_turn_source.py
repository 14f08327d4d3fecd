"""Turns of an actor and its learner: which unrolls are in a batch, and which policy plays them."""

import threading

import numpy as np
import tensorflow as tf
from unrolls import CODEC, LENGTH, unroll

from impala_mm.learner.sources.batch_source import TurnSource, turns_of_actor
from impala_mm.transport.rounds import Rounds

ENVIRONMENTS = 6


def _play(rounds, queue, turns):
    """Play some turns, as an actor does; unrolls are numbered, and have their policy's version."""
    for turn in range(turns + 1):
        while (version := rounds.claim(0, ENVIRONMENTS)) is None:
            pass
        if turn == turns:
            return
        contents = [unroll(turn * ENVIRONMENTS + n) for n in range(ENVIRONMENTS)]
        contents = rounds.take(0, version, contents)
        queue.enqueue_many([contents, [version] * len(contents)])


def test_the_policy_after_all_updates_that_a_turn_allows_plays_the_next_turn():
    rounds = Rounds(ENVIRONMENTS, alone=True)
    queue = tf.queue.FIFOQueue(ENVIRONMENTS, [tf.string, tf.int64], [[], []])
    source = TurnSource(turns_of_actor(rounds, queue), CODEC, 4, "/CPU:0")
    rounds.publish(0)
    assert source.next(0.0) is None, "nobody plays"
    actor = threading.Thread(target=_play, args=[rounds, queue, 4], daemon=True)
    actor.start()
    numbers, versions = [], []
    for update in range(1, 7):
        batch = source.next(30)
        rounds.begin_update()
        assert batch.unrolls.reward.shape == (LENGTH + 1, 4)
        assert batch.fresh.numpy().all()
        assert batch.weight.numpy().tolist() == [1.0] * 4
        numbers += batch.unrolls.reward[0].numpy().tolist()
        versions += batch.version.numpy().tolist()
        np.testing.assert_array_equal(batch.key, np.arange(4) + 4 * (update - 1))
        rounds.publish(update)
    assert numbers == list(range(24))
    # Of the first 6 unrolls 4 make an update, and the other 2 need some of the next turn's.
    assert versions == [0] * 6 + [1] * 6 + [3] * 6 + [4] * 6
    assert source.next(0.0) is None
    actor.join(30)
    assert not actor.is_alive()
