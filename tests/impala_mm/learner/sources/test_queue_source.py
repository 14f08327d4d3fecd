"""Batches from the queue: the next one is prepared ahead, and errors are raised."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from processes import ROOT
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


STAGING = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import test_queue_source
from impala_mm.runtime import devices

devices.training_device = lambda: "/CPU:1"
queue, source = test_queue_source._source()
queue.enqueue_many([[test_queue_source.unroll(i) for i in range(2)], [0, 1]])
batch = source.next(timeout=60)
for name, tensor in [*batch.unrolls._asdict().items(), *batch._asdict().items()]:
    if tf.is_tensor(tensor):
        print(name, tensor.backing_device[-5:])
"""


@pytest.mark.slow
def test_a_batch_lies_where_training_reads_it_but_for_what_is_read_here():
    """A second CPU device in a process of its own stands for the GPU; flags stay on the CPU."""
    paths = [str(path) for path in (Path(__file__).parent, ROOT / "tests" / "helpers", ROOT)]
    printed = subprocess.run(
        [sys.executable, "-c", STAGING],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    where = dict(line.split() for line in printed.splitlines())
    there = {name for name, device in where.items() if device == "CPU:1"}
    assert there == {"reward", "terminated", "truncated", "observation"}
    assert where["first"] == where["weight"] == where["version"] == where["key"] == "CPU:0"
