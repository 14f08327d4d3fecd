"""What a learner shows of an actor that crashed: the user's file and line, and the reason."""

import pytest
import tensorflow as tf

from impala_mm.actor.failures import describe_crash
from impala_mm.data.tensor_io import as_operation


def _raises(x):
    raise ValueError("no such table")


def _line(function, more):
    return f"{__file__}, line {function.__code__.co_firstlineno + more}"


def _crash(function, *arguments):
    with pytest.raises((ValueError, tf.errors.OpError)) as caught:
        function(*arguments)
    return describe_crash(caught.value)


def _asserts(x):
    tf.debugging.assert_greater(x, 5.0, "too small")
    return x


def _calls(x):
    return tf.py_function(_raises, [x], tf.float32)


@pytest.mark.parametrize(
    ("function", "reason", "place"),
    [
        (_asserts, "too small", _line(_asserts, 1)),
        (_calls, "ValueError: no such table", _line(_raises, 1)),
    ],
)
def test_in_a_graph_the_place_is_that_of_the_operation_or_of_what_it_called(
    function, reason, place
):
    traced = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([]))
    fault = _crash(as_operation(traced), tf.constant(1.0))
    assert reason in fault.text
    assert place in fault.text
    assert "{{" not in fault.text
    assert place.rpartition(", line")[0] in fault.traceback


def test_outside_of_a_graph_it_is_the_innermost_of_the_users_frames():
    fault = _crash(_raises, 1)
    assert fault.kind == f"ValueError at {_line(_raises, 1)}"
    assert fault.text == f"{fault.kind}: no such table"
    assert 'raise ValueError("no such table")' in fault.traceback


def test_an_error_without_a_message_is_called_by_its_type():
    assert describe_crash(KeyboardInterrupt()).text == "KeyboardInterrupt"
