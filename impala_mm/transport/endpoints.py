"""The functions that a learner offers its actors, as graphs. `server` has their Python parts.

`transport` says what they are for. What waits, waits in TensorFlow: a call that is held back by a
full queue holds no thread of Python's.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from impala_mm.transport.delivery import ACCEPTED, DENIED
from impala_mm.transport.messages import InferenceRequest, UnrollHeader

if TYPE_CHECKING:
    from impala_mm.inference.batched_inference import BatchedInference
    from impala_mm.transport.server import Server


def make_endpoints(
    token: str, server: "Server", inference: "BatchedInference | None"
) -> dict[str, Any]:
    """By name: what clients may call; each checks the run's token first."""
    text, numbers = (
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([len(UnrollHeader._fields)], tf.int64),
    )
    denied = tf.constant(DENIED, tf.int64)

    def registered(*arguments: tf.TensorSpec) -> Callable[[Any], Any]:
        # AutoGraph would leave a file in /tmp for each function of a process that is killed.
        return tf.function(input_signature=[text, *arguments], autograph=False)

    def if_known(given: tf.Tensor, answer: Any, otherwise: Any) -> Any:
        return tf.cond(tf.equal(given, token), answer, otherwise)

    @registered(text)
    def hello(given, request):
        return if_known(
            given,
            lambda: _call_python(server.hello, [request], tf.string),
            lambda: _call_python(server.no_token, [], tf.string),
        )

    def as_they_were(header: tf.Tensor, sent: tf.Tensor) -> tf.Tensor:
        ready = tf.equal(header[-1], 0)  # it did not come in pieces
        if server.unroll_bytes is not None:
            sizes = tf.strings.length(sent)
            ready &= tf.reduce_all(tf.equal(sizes, server.unroll_bytes))
        return tf.cond(  # through Python only where there is something to do
            ready,
            lambda: sent,
            lambda: _call_python(server.as_they_were, [header, sent], tf.string, [None]),
        )

    @registered(numbers, tf.TensorSpec([None], tf.string), tf.TensorSpec([None, 3], tf.float32))
    def enqueue(given, header, sent, finished):
        def into_the_queue():
            content = as_they_were(header, sent)
            versions = tf.fill([tf.size(content)], header[-2])
            with tf.control_dependencies([server.queue.enqueue_many([content, versions])]):
                return tf.constant(ACCEPTED, tf.int64)

        def answer():
            code = _call_python(server.begin, [header], tf.int64)
            code = tf.cond(tf.equal(code, ACCEPTED), into_the_queue, lambda: code)
            with tf.control_dependencies([code]):  # as it is after this message
                fill = server.queue.size()
            return _call_python(server.end, [header, code, finished, fill], tf.int64, [4])

        return if_known(given, answer, lambda: tf.stack([denied, 0, -1, -1]))

    @registered(numbers, tf.TensorSpec([2], tf.int64), text)
    def piece(given, header, place, content):
        keep = [header, place, content]
        return if_known(given, lambda: _call_python(server.piece, keep, tf.int64), lambda: denied)

    @registered(tf.TensorSpec([4], tf.int64))
    def get_parameters(given, wanted):
        def answer():
            found, content = tf.numpy_function(server.parameters, [wanted], [tf.int64, tf.string])
            return tf.ensure_shape(found, [3]), tf.ensure_shape(content, [])

        nothing = tf.constant([-1, 0, -1], tf.int64), tf.constant(b"")
        return if_known(given, answer, lambda: nothing)

    offered = {
        "hello": hello,
        "enqueue": enqueue,
        "piece": piece,
        "get_parameters": get_parameters,
    }
    if inference:

        @registered(
            tf.TensorSpec([len(InferenceRequest._fields)], tf.int64),
            text,
            tf.TensorSpec([None, 3], tf.float32),
        )
        def infer(given, header, content, finished):
            return if_known(
                given,
                lambda: inference.answer(header, content, finished, server.queue),
                lambda: (tf.stack([denied, -1]), tf.constant(b"")),
            )

        offered["infer"] = infer
    return offered


def _call_python(
    function: Callable[..., Any], inputs: list[tf.Tensor], dtype: tf.DType, shape: Any = ()
) -> tf.Tensor:
    """What a method of ours answers, of a shape that is known."""
    return tf.ensure_shape(tf.numpy_function(function, inputs, dtype), shape)
