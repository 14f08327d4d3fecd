"""Functions of an algorithm computed in float64, though its code asks for float32.

The graph that TensorFlow traces is copied with float64 in place of every float32: in operations,
constants, arguments and the functions that it calls. A copy reads and writes variables of its own.
So rounding is 1e-16 of a number, and results do not depend on a CPU, on threads or on oneDNN.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.eager import context

_FLOAT, _DOUBLE = types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE


class InFloat64:
    """Copies of functions, which share the copies of their variables."""

    def __init__(self) -> None:
        self._variables: dict[int, tuple[tf.Tensor, tf.Variable]] = {}  # by the handle's id

    def function(self, compute: Callable[..., Any], *like: Any) -> Callable[..., Any]:
        """Return the copy of `compute`, traced for arguments like these, nests of arrays."""
        traced = tf.function(compute, autograph=False).get_concrete_function(
            *tf.nest.map_structure(tf.constant, like)
        )
        graph, definition = traced.graph, _widened(traced.graph.as_graph_def())
        captured = [(inner.name, self._captured(outer)) for outer, inner in graph.captures]
        arguments = [inner.name for inner in traced.inputs[: len(traced.inputs) - len(captured)]]
        results, effects = (
            [each.name for each in of] for of in (traced.outputs, graph.control_outputs)
        )

        def copy(*flat: tf.Tensor) -> list[tf.Tensor]:
            capture = tf.compat.v1.get_default_graph().capture
            fed = dict(zip(arguments, flat, strict=True))
            fed |= {name: capture(tensor) for name, tensor in captured}
            made = tf.graph_util.import_graph_def(definition, fed, results + effects, name="")
            with tf.control_dependencies(made[len(results) :]):
                return [tf.identity(each) for each in made[: len(results)]]

        wide = tf.function(copy, autograph=False)

        def call(*given: Any) -> Any:
            flat = [_wide(tf.constant(each)) for each in tf.nest.flatten(given)]
            numbers = iter(wide(*flat))
            return tf.nest.map_structure(  # None is a part of some structures
                lambda part: None if part is None else next(numbers).numpy(),
                traced.structured_outputs,
            )

        return call

    def value(self, variable: tf.Variable) -> np.ndarray:
        """Return what a variable's copy holds; its own value, if no function uses it."""
        if (held := self._variables.get(id(variable.handle))) is None:
            return variable.numpy()
        return held[1].numpy()

    def _captured(self, outer: tf.Tensor) -> tf.Tensor:
        """Return what the copy captures in place of a tensor or a variable's handle."""
        if outer.dtype != tf.resource:
            return _wide(outer)
        if id(outer) not in self._variables:
            dtype = tf.as_dtype(outer._handle_data.shape_and_type[0].dtype)
            value = _wide(tf.raw_ops.ReadVariableOp(resource=outer, dtype=dtype))
            self._variables[id(outer)] = outer, tf.Variable(value, trainable=False)
        return self._variables[id(outer)][1].handle


def _wide(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float64) if tensor.dtype == tf.float32 else tensor


def _widened(graph: Any) -> Any:
    """Return a GraphDef with float64 for float32; its functions get names of their own."""
    functions = list(graph.library.function)
    names = {function.signature.name for function in functions}
    _widen_nodes(graph.node, names)
    for function in functions:
        function.signature.name += _SUFFIX
        for argument in [*function.signature.input_arg, *function.signature.output_arg]:
            argument.type = _DOUBLE if argument.type == _FLOAT else argument.type
            for handle in argument.handle_data:
                handle.dtype = _DOUBLE if handle.dtype == _FLOAT else handle.dtype
        _widen_nodes(function.node_def, names)
        _widen_attributes(function.attr.values())
        for attributes in function.arg_attr.values():
            _widen_attributes(attributes.attr.values())
        context.context().add_function_def(function)
    return graph


_SUFFIX = "_in_float64"


def _widen_nodes(nodes: Sequence[Any], functions: set[str]) -> None:
    for node in nodes:
        if node.op in functions:
            node.op += _SUFFIX
        _widen_attributes(node.attr.values())


def _widen_attributes(attributes: Iterable[Any]) -> None:
    for attribute in attributes:
        if attribute.type == _FLOAT:
            attribute.type = _DOUBLE
        for i, dtype in enumerate(attribute.list.type):
            if dtype == _FLOAT:
                attribute.list.type[i] = _DOUBLE
        for tensor in [attribute.tensor, *attribute.list.tensor]:
            if tensor.dtype == _FLOAT:
                wide = tf.make_ndarray(tensor).astype(np.float64)
                tensor.CopyFrom(tf.make_tensor_proto(wide, shape=wide.shape))
        for function in [attribute.func, *attribute.list.func]:
            if function.name:
                function.name += _SUFFIX
                _widen_attributes(function.attr.values())
