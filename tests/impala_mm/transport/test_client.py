"""Calls by TensorFlow's RPC: their results, their errors, and that their resources are freed."""

import gc

import pytest
import tensorflow as tf
from processes import free_port

from impala_mm.transport.client import Client, Unreachable

_SPECS = [tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)]  # the token, a number


@pytest.fixture(scope="module")
def caller():
    address = f"127.0.0.1:{free_port()}"
    experimental, empty = tf.distribute.experimental.rpc, tf.queue.FIFOQueue(1, tf.int64, [[]])
    server = experimental.Server.create("grpc", address)

    @tf.function(input_signature=_SPECS, autograph=False)
    def twice(token, number):
        return 2 * number, tf.strings.as_string(number)

    @tf.function(input_signature=_SPECS, autograph=False)
    def fails(token, number):
        with tf.control_dependencies([tf.debugging.assert_equal(number, number + 1, "as it must")]):
            return tf.identity(number)

    @tf.function(input_signature=_SPECS, autograph=False)
    def never(token, number):
        return empty.dequeue() + number

    for function in (twice, fails, never):
        server.register(function.__name__, function)
    server.start()
    yield Client(address, "a token", timeout=10)
    empty.close(cancel_pending_enqueues=True)


def test_calls_bring_answers_in_any_order(caller):
    result = [tf.int64, tf.string]
    calls = [caller.start("twice", [tf.constant(i, tf.int64)], result) for i in range(9)]
    for i in reversed(range(9)):
        assert calls[i].wait() == (0, "")
        number, text = calls[i].result()
        assert (int(number), text.numpy()) == (2 * i, b"%d" % i)


def test_a_call_that_fails_says_why_and_a_late_one_that_it_is_late(caller):
    one = [tf.constant(1, tf.int64)]
    failed = caller.start("fails", one, [tf.int64])
    code, message = failed.wait()
    assert code == tf.errors.INVALID_ARGUMENT
    assert "as it must" in message
    with pytest.raises(Unreachable, match=r"^fails: .*as it must") as failure:
        failed.result()
    assert not failure.value.late
    late = caller.start("never", one, [tf.int64], timeout=0.05)
    assert late.wait()[0] == tf.errors.DEADLINE_EXCEEDED
    with pytest.raises(Unreachable, match=r"^never: ") as failure:
        late.result()
    assert failure.value.late
    assert caller.start("unknown", one, [tf.int64]).wait()[0]


def test_a_call_that_is_garbage_is_no_part_of_a_graph_that_is_traced_meanwhile(caller):
    left = [caller.start("twice", [tf.constant(1, tf.int64)], [tf.int64, tf.string])]
    assert left[0].wait() == (0, "")

    @tf.function(autograph=False)
    def traced(x):
        left.clear()
        gc.collect()
        return x + 1

    graph = traced.get_concrete_function(tf.TensorSpec([], tf.int64)).graph
    assert not [op.name for op in graph.get_operations() if "rpc" in op.name.lower()]
    assert int(traced(tf.constant(1, tf.int64))) == 2
