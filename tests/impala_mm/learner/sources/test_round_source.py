"""Batches of rounds: one version, always the full shape, padding without weight."""

import numpy as np
import tensorflow as tf
from unrolls import CODEC, LENGTH, unroll

from impala_mm.learner.sources.batch_source import RoundSource
from impala_mm.transport.rounds import Rounds


def test_a_round_becomes_a_batch_of_the_full_shape_and_what_is_missing_has_no_weight(monkeypatch):
    monkeypatch.setattr("impala_mm.transport.rounds._FIRST_TIMEOUT", 0.05)
    monkeypatch.setattr("impala_mm.transport.rounds._LEAST_TIMEOUT", 0.05)
    queue = tf.queue.FIFOQueue(5, [tf.string, tf.int64], [[], []])
    rounds = Rounds(5, lambda line: None)
    source = RoundSource(rounds, queue, CODEC)
    assert source.next(0.0) is None, "there is no policy yet"
    for version, count in ((0, 5), (1, 3)):
        rounds.publish(version)
        assert source.next(0.0) is None
        rounds.claim(0, 5)
        taken = rounds.take(0, version, [unroll(10 * version + i) for i in range(count)])
        queue.enqueue_many([taken, [version] * count])
        if count < 5:
            assert source.next(0.0) is None, "more may come"
        batch = source.next(2.0)
        assert batch.unrolls.reward.shape == (LENGTH + 1, 5)
        numbers = [10 * version + i % count for i in range(5)]
        np.testing.assert_array_equal(batch.unrolls.reward[0], numbers)
        np.testing.assert_array_equal(batch.weight, [1.0] * count + [0.0] * (5 - count))
        np.testing.assert_array_equal(batch.fresh, batch.weight.numpy() > 0)
        np.testing.assert_array_equal(batch.version, [version] * 5)
        assert int(queue.size()) == 0
    assert rounds.padded == 2
