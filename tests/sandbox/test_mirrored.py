"""The example that mirrors boards beside NumPy."""

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.feature import Reading
from impala_mm.data.trajectory import Batch, Entry
from sandbox.mirrored import Mirror


def test_columns_of_a_batch_are_turned_as_a_whole():
    random, columns = np.random.default_rng(0), 64
    boards = random.integers(0, 2, [9, columns, 6, 7, 2]).astype(np.int8)
    actions = random.integers(0, 7, [9, columns]).astype(np.int32)
    masks = random.random([9, columns, 7]) < 0.5
    given = Entry(actions, boards[..., 0, 0, 0], (), (), boards, (), (), masks)
    batch = Batch(given, (), (), np.ones(columns, np.float32), (), ())
    reading = Reading(None, lambda use: tf.constant([3, use], tf.int64), tuple)
    found, prepared = Mirror().prepare(tf.nest.map_structure(tf.constant, batch), reading)
    assert prepared == ()
    turned = [not np.array_equal(found.unrolls.observation[:, b], boards[:, b]) for b in range(64)]
    assert 16 < sum(turned) < 48
    for b, is_turned in enumerate(turned):
        here = slice(None, None, -1 if is_turned else 1)
        np.testing.assert_array_equal(found.unrolls.observation[:, b], boards[:, b, :, here])
        np.testing.assert_array_equal(found.unrolls.mask[:, b], masks[:, b, here])
        played = np.eye(7)[found.unrolls.action[:, b]][:, here]
        np.testing.assert_array_equal(played, np.eye(7)[actions[:, b]])
    np.testing.assert_array_equal(found.unrolls.reward, given.reward)
