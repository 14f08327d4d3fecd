"""Batches from the queue: the next one is prepared ahead, and errors are raised."""

import time

import numpy as np
import pytest
import tensorflow as tf
from supervising import until
from unrolls import CODEC, LENGTH, unroll

from impala_mm.learner.sources.batch_source import QueueSource


def _source(capacity=10, batch_size=2):
    queue = tf.queue.FIFOQueue(capacity, [tf.string, tf.int64], [[], []])
    return queue, QueueSource(queue, CODEC, batch_size)


def test_batches_hold_the_queues_unrolls_in_their_order_each_once():
    queue, source = _source()
    queue.enqueue_many([[unroll(i) for i in range(6)], list(range(6))])
    batches = [source.next(timeout=60) for _ in range(3)]
    for i, batch in enumerate(batches):
        assert batch.unrolls.reward.shape == (LENGTH + 1, 2)
        np.testing.assert_array_equal(batch.unrolls.reward[0], [2 * i, 2 * i + 1])
        np.testing.assert_array_equal(batch.version, [2 * i, 2 * i + 1])
        np.testing.assert_array_equal(batch.key, [2 * i, 2 * i + 1])
        assert batch.fresh.numpy().all()
    assert source.next(timeout=0.1) is None


def test_an_unroll_that_cannot_be_read_ends_the_learner_and_a_closed_queue_does_not():
    queue, source = _source()
    queue.close(cancel_pending_enqueues=True)
    time.sleep(0.3)
    assert source.next(timeout=0.1) is None
    queue, source = _source(batch_size=1)
    queue.enqueue([b"cut short", 0])
    with pytest.raises(tf.errors.InvalidArgumentError):
        until(lambda: source.next(timeout=0.1))
