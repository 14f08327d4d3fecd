"""The translation of a traced function of TensorFlow to operations of NumPy.

`Translation` lists the steps, operation by operation, so that it describes whatever the algorithm
and its network define. Actors run them (`impala_mm/actor/numpy_function.py`), and an export writes
them as Python (`impala_mm/policy/numpy_export.py`).
"""

import functools
import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data import numpy_operations as ops

CONSTANT, POLICY, CALL = range(3)  # a value changes never, with the policy, or with each call
_SAME = {"Identity", "IdentityN", "ReadVariableOp", "StopGradient"}  # outputs are the inputs
_INLINED = {"PartitionedCall", "StatefulPartitionedCall"}
_DTYPES = {tf.bool, tf.uint8, tf.int32, tf.int64, tf.float32, tf.float64}
_NAMES_OF_DTYPES = ", ".join(sorted(dtype.name for dtype in _DTYPES))


class Untranslatable(Exception):
    """An operation that NumPy does not compute here; the message names it."""


class Call(NamedTuple):
    """A function of NumPy or of `numpy_operations`, and its arguments."""

    function: Callable[..., Any]
    inputs: tuple[int, ...] | None = None  # which inputs of the operation; None: all
    fixed: tuple[tuple[str, Any], ...] = ()  # further arguments by name, which do not change
    random: bool = False  # whether it takes a generator of random numbers, by the name `random`

    def bind(self, random: np.random.Generator) -> Callable[..., Any]:
        """Return the function with its arguments that do not change."""
        fixed = dict(self.fixed) | ({"random": random} if self.random else {})
        return functools.partial(self.function, **fixed) if fixed else self.function


class Step(NamedTuple):
    """A call, and the numbers of the values that it reads and writes."""

    call: Call
    inputs: list[int]
    outputs: list[int]


class Translation:
    """The steps that compute a concrete function of flat tensors."""

    def __init__(self, concrete: Any, without: Collection[str] = ()):
        """Translate a concrete function; raise Untranslatable if an operation is not known.

        `without`: operations that shall not be translated, either.
        """
        self.names: list[str] = []  # of the values: those of their tensors
        self.values: list[Any] = []  # the known ones: those of constants outside of the function
        self.inputs: list[int] = []
        self.read: list[tuple[int, tf.Variable]] = []  # the values that are variables
        self.steps: tuple[list[Step], list[Step], list[Step]] = ([], [], [])  # by their changes
        self._changes: list[int] = []  # how often each value changes
        self._without = without
        graph, numbers = concrete.graph, dict[str, int]()
        captured = {id(inside): outside for outside, inside in graph.captures}
        variables = {id(variable.handle): variable for variable in graph.variables}
        for tensor in graph.inputs:
            outside = captured.get(id(tensor))
            if outside is None:
                number = self._add(tensor.name, CALL)
                self.inputs.append(number)
            elif id(outside) in variables:
                variable = variables[id(outside)]
                number = self._add(variable.name, POLICY)
                self.read.append((number, variable))
            elif outside.dtype != tf.resource:
                number = self._add(tensor.name, CONSTANT)
                self.values[number] = outside.numpy()
            else:
                raise Untranslatable(f"a resource that is no variable: {tensor.name}")
            numbers[tensor.name] = number
        self.outputs = self._inline(graph, numbers)
        self._leave_out_unneeded()

    def _inline(self, graph: Any, numbers: dict[str, int]) -> list[int]:
        """Add a graph's steps; `numbers` are those of its inputs. Return those of its outputs."""
        for operation in graph.get_operations():
            if operation.type not in {"Placeholder", "NoOp"}:
                inputs = [numbers[tensor.name] for tensor in operation.inputs]
                names = (tensor.name for tensor in operation.outputs)
                numbers.update(zip(names, self._translate(operation, inputs), strict=True))
        return [numbers[tensor.name] for tensor in graph.outputs]

    def _translate(self, operation: tf.Operation, inputs: list[int]) -> list[int]:
        """Add the steps that compute an operation; return its outputs' numbers."""
        kind = operation.type
        if kind in self._without:
            raise Untranslatable(kind)
        if kind in _SAME:
            return inputs
        if kind == "Const":
            number = self._add(operation.outputs[0].name, CONSTANT)
            self.values[number] = tf.make_ndarray(operation.get_attr("value"))
            return [number]
        if kind in _INLINED:
            return self._inlined(operation, "f", inputs)
        if kind in {"If", "StatelessIf"}:  # no translated branch has an effect: both are computed
            condition, *given = inputs
            yes, no = (
                self._inlined(operation, f"{branch}_branch", given) for branch in ("then", "else")
            )
            pairs = zip(operation.outputs, yes, no, strict=True)
            return [
                self._step(Call(ops.choose), [condition, a, b], [tensor])[0]
                for tensor, a, b in pairs
            ]
        call = translate(operation)
        if call.inputs is not None:
            inputs = [inputs[number] for number in call.inputs]
        return self._step(call, inputs, operation.outputs)

    def _inlined(self, operation: tf.Operation, attribute: str, inputs: list[int]) -> list[int]:
        name = operation.get_attr(attribute).name
        graph = operation.graph._get_function(name).graph
        given = [tensor.name for tensor in graph.inputs]
        return self._inline(graph, dict(zip(given, inputs, strict=True)))

    def _step(self, call: Call, inputs: list[int], outputs: Any) -> list[int]:
        """Add a step; return the numbers of its outputs, which are tensors."""
        changes = max((self._changes[number] for number in inputs), default=CONSTANT)
        changes = CALL if call.random else changes
        written = [self._add(tensor.name, changes) for tensor in outputs]
        self.steps[changes].append(Step(call, inputs, written))
        return written

    def _add(self, name: str, changes: int) -> int:
        """Return the number of a new value."""
        self.names.append(name)
        self.values.append(None)
        self._changes.append(changes)
        return len(self.names) - 1

    def _leave_out_unneeded(self) -> None:
        """Remove the steps whose results the function's results do not depend on."""
        needed = set(self.outputs)
        for steps in reversed(self.steps):
            for step in reversed(steps[:]):
                if needed.isdisjoint(step.outputs):
                    steps.remove(step)
                else:
                    needed.update(step.inputs)


# The operations, by the names that TensorFlow gives them. The only size that a trace may not know
# is that of one axis, the batch's.


def translate(operation: tf.Operation) -> Call:
    """Return the call that computes an operation; raise Untranslatable if there is none."""
    for output in operation.outputs:
        if output.dtype not in _DTYPES:
            raise Untranslatable(
                f"{operation.type} of {output.dtype.name}, which is none of {_NAMES_OF_DTYPES}"
            )
    if function := _FUNCTIONS.get(operation.type):
        return Call(function)
    if make := _MAKERS.get(operation.type):
        return make(operation)
    raise Untranslatable(operation.type)


def _call(
    function: Callable[..., Any], inputs: tuple[int, ...] | None = None, **fixed: Any
) -> Call:
    return Call(function, inputs, tuple(fixed.items()))


def _fixed(operation: tf.Operation, index: int) -> np.ndarray:
    """Return the value of an input that does not change."""
    value = tf.get_static_value(operation.inputs[index])
    if value is None:
        raise Untranslatable(f"{operation.type} whose argument {index} changes")
    return value


def _refuse_unless(operation: tf.Operation, **attributes: Any) -> None:
    for name, value in attributes.items():
        found = operation.get_attr(name)
        if found != value:
            shown = found.decode() if isinstance(found, bytes) else found
            raise Untranslatable(f"{operation.type} with {name}={shown}")


def _shape(operation: tf.Operation) -> tuple[int, ...]:
    """Return the output's sizes, of which one may be -1: whatever the other ones leave."""
    shape = operation.outputs[0].shape
    sizes = [] if shape.rank is None else [-1 if n is None else n for n in shape.as_list()]
    if shape.rank is None or sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes):
        raise Untranslatable(f"{operation.type} to the shape {shape}")
    return tuple(sizes)


def _dtype(operation: tf.Operation) -> Any:
    return operation.outputs[0].dtype.as_numpy_dtype


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "AddV2": np.add,
    "BiasAdd": np.add,
    "Cos": np.cos,
    "Elu": ops.elu,
    "Equal": np.equal,
    "Erf": ops.erf,
    "Erfc": ops.erfc,
    "Exp": np.exp,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Log": np.log,
    "Log1p": np.log1p,
    "LogicalAnd": np.logical_and,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "NotEqual": np.not_equal,
    "OnesLike": np.ones_like,
    "Pow": np.power,
    "RealDiv": np.divide,
    "Relu": ops.relu,
    "ResourceGather": ops.rows,
    "Rsqrt": ops.rsqrt,
    "SelectV2": np.where,
    "Sigmoid": ops.sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Softmax": ops.softmax,
    "Softplus": ops.softplus,
    "Sqrt": np.sqrt,
    "Square": np.square,
    "SquaredDifference": ops.squared_difference,
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "ZerosLike": np.zeros_like,
}


def _reduction(reduce: Callable[..., Any]) -> Callable[[tf.Operation], Call]:
    def make(operation: tf.Operation) -> Call:
        axes = tuple(np.ravel(_fixed(operation, 1)).tolist())
        return _call(reduce, (0,), axis=axes, keepdims=operation.get_attr("keep_dims"))

    return make


def _typed_reduction(reduce: Callable[..., Any]) -> Callable[[tf.Operation], Call]:
    def make(operation: tf.Operation) -> Call:
        call = _reduction(reduce)(operation)
        dtype = ("dtype", _dtype(operation))  # NumPy's own would be int64 for int32
        return call._replace(fixed=(*call.fixed, dtype))

    return make


def _arg_max(operation: tf.Operation) -> Call:
    return _call(ops.arg_max, (0,), axis=int(_fixed(operation, 1)), dtype=_dtype(operation))


def _bitcast(operation: tf.Operation) -> Call:
    return _call(ops.bitcast, dtype=_dtype(operation), shape=_shape(operation))


def _cast(operation: tf.Operation) -> Call:
    return _call(ops.cast, dtype=_dtype(operation))


def _concat(operation: tf.Operation) -> Call:
    parts = tuple(range(len(operation.inputs) - 1))
    return _call(ops.concat, parts, axis=int(_fixed(operation, -1)))


def _conv2d(operation: tf.Operation) -> Call:
    _refuse_unless(operation, data_format=b"NHWC", dilations=[1, 1, 1, 1])
    same, strides = _padding(operation), tuple(operation.get_attr("strides")[1:3])
    image, kernel = (tensor.shape for tensor in operation.inputs)
    if image[3] != kernel[2]:
        raise Untranslatable(f"Conv2D of {image[3]} channels in groups of {kernel[2]}")
    return _call(ops.conv2d, strides=strides, same=same)


def _pool(pool: Callable[..., Any]) -> Callable[[tf.Operation], Call]:
    def make(operation: tf.Operation) -> Call:
        _refuse_unless(operation, data_format=b"NHWC")
        size, strides = (operation.get_attr(name) for name in ("ksize", "strides"))
        if {size[0], size[3], strides[0], strides[3]} != {1}:
            raise Untranslatable(f"{operation.type} of channels or of images")
        same = _padding(operation)
        return _call(pool, size=tuple(size[1:3]), strides=tuple(strides[1:3]), same=same)

    return make


def _padding(operation: tf.Operation) -> bool:
    """Return whether an operation's padding is SAME and not VALID."""
    padding = operation.get_attr("padding")
    if padding not in (b"SAME", b"VALID"):
        raise Untranslatable(f"{operation.type} with padding={padding.decode()}")
    return padding == b"SAME"


def _fill(operation: tf.Operation) -> Call:
    shape = operation.outputs[0].shape
    if shape.is_fully_defined():
        return _call(ops.filled, (1,), shape=tuple(shape.as_list()))
    return Call(np.full)


def _gather(operation: tf.Operation) -> Call:
    axis = int(_fixed(operation, 2))
    if operation.get_attr("batch_dims") == 1 == axis and operation.inputs[1].shape.rank == 1:
        return Call(ops.of_each, (0, 1))
    _refuse_unless(operation, batch_dims=0)
    return _call(np.take, (0, 1), axis=axis)


def _mat_mul(operation: tf.Operation) -> Call:
    names = ("adj_x", "adj_y") if "Batch" in operation.type else ("transpose_a", "transpose_b")
    of_x, of_y = (operation.get_attr(name) for name in names)
    if not (of_x or of_y):
        return Call(np.matmul)
    return _call(ops.matmul, transpose_x=of_x, transpose_y=of_y)


def _one_hot(operation: tf.Operation) -> Call:
    _refuse_unless(operation, axis=-1)
    return Call(ops.one_hot)


def _pack(operation: tf.Operation) -> Call:
    return _call(ops.stack, axis=operation.get_attr("axis"))


def _reshape(operation: tf.Operation) -> Call:
    return _call(ops.reshape, (0,), shape=_shape(operation))


def _broadcast(operation: tf.Operation) -> Call:
    shape = operation.outputs[0].shape
    if shape.is_fully_defined():
        return _call(np.broadcast_to, (0,), shape=tuple(shape.as_list()))
    return Call(np.broadcast_to)


def _shape_of(operation: tf.Operation) -> Call:
    return _call(ops.shape_of, dtype=_dtype(operation))


def _split(operation: tf.Operation) -> Call:
    """Return what takes the parts of an array; Split has the axis first, and SplitV last."""
    first = operation.type == "Split"
    axis = int(_fixed(operation, 0 if first else 2)) % operation.outputs[0].shape.rank
    sizes = [output.shape[axis] for output in operation.outputs]
    if len(sizes) == 1:  # which is the output itself, and not a list
        return _call(ops.part, (int(first),), index=...)
    if None in sizes:
        raise Untranslatable(f"{operation.type} of an axis of unknown size")
    ends = itertools.pairwise(np.cumsum([0, *sizes]).tolist())
    parts = tuple((*[slice(None)] * axis, slice(i, j)) for i, j in ends)
    return _call(ops.split, (int(first),), parts=parts)


def _strided_slice(operation: tf.Operation) -> Call:
    starts, stops, steps = (_fixed(operation, i).tolist() for i in (1, 2, 3))
    names = ("ellipsis", "new_axis", "shrink_axis", "begin", "end")
    masks = [operation.get_attr(f"{name}_mask") for name in names]
    index: list[Any] = []
    for i, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        others, new, one, from_begin, to_end = (mask >> i & 1 for mask in masks)
        if others:
            index.append(...)
        elif new:
            index.append(None)
        elif one:
            index.append(start)
        else:
            index.append(slice(None if from_begin else start, None if to_end else stop, step))
    return _call(ops.part, (0,), index=tuple(index))


def _transpose(operation: tf.Operation) -> Call:
    return _call(np.transpose, (0,), axes=tuple(_fixed(operation, 1).tolist()))


def _unpack(operation: tf.Operation) -> Call:
    before = [slice(None)] * (operation.get_attr("axis") % operation.inputs[0].shape.rank)
    parts = tuple((*before, i) for i in range(len(operation.outputs)))
    if len(parts) == 1:
        return _call(ops.part, index=parts[0])
    return _call(ops.split, parts=parts)


def _random(
    function: Callable[..., Any], inputs: tuple[int, ...]
) -> Callable[[tf.Operation], Call]:
    """Return what draws numbers with these inputs of the operation."""

    def make(operation: tf.Operation) -> Call:
        return _call(function, inputs, dtype=_dtype(operation))._replace(random=True)

    return make


_MAKERS: dict[str, Callable[[tf.Operation], Call]] = {
    "All": _reduction(np.all),
    "Any": _reduction(np.any),
    "ArgMax": _arg_max,
    "AvgPool": _pool(ops.avg_pool2d),
    "BatchMatMulV2": _mat_mul,
    "Bitcast": _bitcast,
    "BroadcastTo": _broadcast,
    "Cast": _cast,
    "ConcatV2": _concat,
    "Conv2D": _conv2d,
    "EnsureShape": _reshape,
    "ExpandDims": _reshape,
    "Fill": _fill,
    "GatherV2": _gather,
    "MatMul": _mat_mul,
    "Max": _reduction(np.max),
    "MaxPool": _pool(ops.max_pool2d),
    "Mean": _reduction(np.mean),
    "Min": _reduction(np.min),
    "Multinomial": _random(ops.categorical, (0, 1)),
    "OneHot": _one_hot,
    "Pack": _pack,
    "Prod": _typed_reduction(np.prod),
    "RandomStandardNormal": _random(ops.normal, (0,)),
    "RandomUniform": _random(ops.uniform, (0,)),
    "RandomUniformInt": _random(ops.uniform_int, (0, 1, 2)),
    "Reshape": _reshape,
    "Shape": _shape_of,
    "Split": _split,
    "SplitV": _split,
    "Squeeze": _reshape,
    "StridedSlice": _strided_slice,
    "Sum": _typed_reduction(np.sum),
    "Transpose": _transpose,
    "Unpack": _unpack,
}
