"""A traced function of TensorFlow, computed by NumPy.

Calling a function of TensorFlow takes a sixth to a third of a millisecond, however little it
computes; NumPy computes a small network in a fraction of that. `NumpyFunction` translates the trace
operation by operation, so it computes whatever the algorithm and its network define. `acting` makes
one, and keeps TensorFlow's function where an operation has no translation.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.tensor_io import as_operation

_CONSTANT, _POLICY, _CALL = range(3)  # a value changes never, with the policy, or with each call
_SAME = {"Identity", "IdentityN", "ReadVariableOp", "StopGradient"}  # outputs are the inputs

_Compute = Callable[..., Any]
_DTYPES = {tf.bool, tf.uint8, tf.int32, tf.int64, tf.float32, tf.float64}
# A computation, and the numbers of the values that it reads and writes.
_Step = tuple[Callable[..., Any], list[int], list[int]]


class Untranslatable(Exception):
    """An operation that NumPy does not compute here; the message names it."""


class NumpyFunction:
    """A concrete function of flat tensors, computed by NumPy with the variables' last read values.

    Random numbers have the distributions that TensorFlow's have, and are not the same numbers.
    """

    def __init__(self, concrete: Any, random: np.random.Generator):
        """Translate a concrete function; raise Untranslatable if NumPy cannot compute it."""
        self._values: list[Any] = []
        self._changes: list[int] = []  # how often each value changes
        self._numbers: dict[str, int] = {}  # of the values, by their tensors' names
        self._inputs: list[int] = []
        read: list[tf.Variable] = []
        self._read: list[int] = []  # the values that are variables
        self._steps: list[list[_Step]] = [[], [], []]  # by how often their results change
        graph = concrete.graph
        captured = {id(inside): outside for outside, inside in graph.captures}
        variables = {id(variable.handle): variable for variable in graph.variables}
        for tensor in graph.inputs:
            outside = captured.get(id(tensor))
            if outside is None:
                self._inputs.append(self._add(tensor, _CALL))
            elif id(outside) in variables:
                read.append(variables[id(outside)])
                self._read.append(self._add(tensor, _POLICY))
            elif outside.dtype != tf.resource:
                self._values[self._add(tensor, _CONSTANT)] = outside.numpy()
            else:
                raise Untranslatable(f"a resource that is no variable: {tensor.name}")
        for operation in graph.get_operations():
            self._translate(operation, random)
        self._outputs = [self._numbers[tensor.name] for tensor in graph.outputs]
        self._leave_out_unneeded()
        reading = tf.function(lambda: [v.read_value() for v in read], autograph=False)
        self._read_all = as_operation(reading.get_concrete_function())
        constant, self._compute_policy, self._compute = map(_as_function, self._steps)
        constant(self._values)
        self.read_variables()

    def read_variables(self) -> None:
        """Read the variables' values, for the calls until this method is called again."""
        for number, value in zip(self._read, self._read_all(), strict=True):
            self._values[number] = value.numpy()
        self._compute_policy(self._values)

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """Return the function's results for arrays, which may be overwritten afterwards."""
        for number, array in zip(self._inputs, arrays, strict=True):
            self._values[number] = np.array(array)
        self._compute(self._values)
        return [self._values[number] for number in self._outputs]

    def _translate(self, operation: tf.Operation, random: np.random.Generator) -> None:
        """Add an operation's outputs to the values, and the step that computes them."""
        if operation.type in {"Placeholder", "NoOp"}:
            return
        inputs = [self._numbers[tensor.name] for tensor in operation.inputs]
        if operation.type in _SAME:
            names = (tensor.name for tensor in operation.outputs)
            self._numbers.update(zip(names, inputs, strict=True))
            return
        compute = translate(operation, random)
        changes = max((self._changes[number] for number in inputs), default=_CONSTANT)
        changes = _CALL if is_random(operation) else changes
        outputs = [self._add(tensor, changes) for tensor in operation.outputs]
        self._steps[changes].append((compute, inputs, outputs))

    def _add(self, tensor: tf.Tensor, changes: int) -> int:
        """Return the number of a new value."""
        number = self._numbers[tensor.name] = len(self._values)
        self._values.append(None)
        self._changes.append(changes)
        return number

    def _leave_out_unneeded(self) -> None:
        """Remove the steps whose results the function's results do not depend on."""
        needed = set(self._outputs)
        for steps in reversed(self._steps):
            for step in reversed(steps[:]):
                _, inputs, outputs = step
                if needed.isdisjoint(outputs):
                    steps.remove(step)
                else:
                    needed.update(inputs)


def _as_function(steps: list[_Step]) -> Callable[[list[Any]], None]:
    """Return a function that takes these steps with a list of values.

    It is generated as Python code, since a loop over the steps takes half as long as these.
    """
    names: dict[str, Any] = {}
    lines = ["def compute(v):", "    pass"]
    for i, (compute, inputs, outputs) in enumerate(steps):
        names[f"f{i}"] = compute
        read, written = (", ".join(f"v[{n}]" for n in numbers) for numbers in (inputs, outputs))
        lines.append(f"    {written} = f{i}({read})")
    exec("\n".join(lines), names)
    return names["compute"]


# The operations, by the names that TensorFlow gives them. Each takes the operation's inputs as
# arrays, and returns its output, or a list of its outputs if it has several. All shapes are known
# from the trace.


def translate(operation: tf.Operation, random: np.random.Generator) -> _Compute:
    """Return the function that computes an operation; raise Untranslatable if there is none."""
    for output in operation.outputs:
        if output.dtype not in _DTYPES or not output.shape.is_fully_defined():
            raise Untranslatable(f"{operation.type} of {output.dtype.name} {output.shape}")
    if compute := _FUNCTIONS.get(operation.type):
        return compute
    if make := _MAKERS.get(operation.type):
        return make(operation)
    if make_random := _RANDOM.get(operation.type):
        return make_random(operation, random)
    raise Untranslatable(operation.type)


def is_random(operation: tf.Operation) -> bool:
    """Return whether an operation draws random numbers."""
    return operation.type in _RANDOM


def _fixed(operation: tf.Operation, index: int) -> np.ndarray:
    """Return the value of an input that does not change."""
    value = tf.get_static_value(operation.inputs[index])
    if value is None:
        raise Untranslatable(f"{operation.type} whose argument {index} changes")
    return value


def _refuse_unless(operation: tf.Operation, **attributes: Any) -> None:
    for name, value in attributes.items():
        if operation.get_attr(name) != value:
            raise Untranslatable(f"{operation.type} with {name}={operation.get_attr(name)}")


def _shape(operation: tf.Operation) -> list[int]:
    return operation.outputs[0].shape.as_list()


def _dtype(operation: tf.Operation) -> Any:
    return operation.outputs[0].dtype.as_numpy_dtype


# -- operations that need nothing but their inputs


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.maximum(x, -80)))  # exp(80) does not overflow in float32


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _one_hot(numbers: np.ndarray, depth: Any, on: Any, off: Any) -> np.ndarray:
    return np.where(numbers[..., None] == np.arange(depth), on, off)


_FUNCTIONS: dict[str, _Compute] = {
    "Abs": np.abs,
    "AddV2": np.add,
    "BiasAdd": np.add,
    "Cos": np.cos,
    "Elu": _elu,
    "Equal": np.equal,
    "Exp": np.exp,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Log": np.log,
    "LogicalAnd": np.logical_and,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "RealDiv": np.divide,
    "Relu": lambda x: np.maximum(x, 0),
    "ResourceGather": lambda table, rows: table[rows],
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "SelectV2": np.where,
    "Sigmoid": _sigmoid,
    "Sign": np.sign,
    "Softmax": _softmax,
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Sqrt": np.sqrt,
    "Square": np.square,
    "SquaredDifference": lambda x, y: np.square(x - y),
    "Sub": np.subtract,
    "Tanh": np.tanh,
}


# -- operations that depend on attributes, or on inputs that do not change


def _reduction(reduce: _Compute) -> Callable[[tf.Operation], _Compute]:
    def make(operation: tf.Operation) -> _Compute:
        axes = tuple(np.ravel(_fixed(operation, 1)).tolist())
        keep = operation.get_attr("keep_dims")
        return lambda x, _: reduce(x, axis=axes, keepdims=keep)

    return make


def _sum(operation: tf.Operation) -> _Compute:
    dtype = _dtype(operation)  # NumPy's own would be int64 for int32
    make = _reduction(lambda x, **how: np.sum(x, dtype=dtype, **how))
    return make(operation)


def _arg_max(operation: tf.Operation) -> _Compute:
    axis, dtype = int(_fixed(operation, 1)), _dtype(operation)
    return lambda x, _: x.argmax(axis).astype(dtype)


def _cast(operation: tf.Operation) -> _Compute:
    dtype = _dtype(operation)
    return lambda x: x.astype(dtype)


def _concat(operation: tf.Operation) -> _Compute:
    axis = int(_fixed(operation, -1))
    return lambda *inputs: np.concatenate(inputs[:-1], axis)


def _constant(operation: tf.Operation) -> _Compute:
    value = tf.make_ndarray(operation.get_attr("value"))
    return lambda: value


def _fill(operation: tf.Operation) -> _Compute:
    shape = _shape(operation)
    return lambda _, value: np.full(shape, value)


def _gather(operation: tf.Operation) -> _Compute:
    _refuse_unless(operation, batch_dims=0)
    axis = int(_fixed(operation, 2))
    return lambda x, numbers, _: np.take(x, numbers, axis)


def _mat_mul(operation: tf.Operation) -> _Compute:
    _refuse_unless(operation, transpose_a=False, transpose_b=False)
    return np.matmul


def _one_hot_last(operation: tf.Operation) -> _Compute:
    _refuse_unless(operation, axis=-1)
    return _one_hot


def _pack(operation: tf.Operation) -> _Compute:
    axis = operation.get_attr("axis")
    return lambda *inputs: np.stack(inputs, axis)


def _reshape(operation: tf.Operation) -> _Compute:
    shape = _shape(operation)
    return lambda x, *_: x.reshape(shape)


def _broadcast(operation: tf.Operation) -> _Compute:
    shape = _shape(operation)
    return lambda x, _: np.broadcast_to(x, shape)


def _split(operation: tf.Operation) -> _Compute:
    """Return what takes the parts of an array; Split has the axis first, and SplitV last."""
    first = operation.type == "Split"
    axis = int(_fixed(operation, 0 if first else 2)) % operation.outputs[0].shape.rank
    ends = np.cumsum([0, *(output.shape[axis] for output in operation.outputs)]).tolist()
    parts = [(*[slice(None)] * axis, slice(i, j)) for i, j in itertools.pairwise(ends)]
    if len(parts) == 1:  # which is the output itself, and not a list
        return (lambda _, x: x) if first else (lambda x, *_: x)
    take = lambda x: [x[part] for part in parts]  # noqa: E731
    return (lambda _, x: take(x)) if first else (lambda x, *_: take(x))


def _strided_slice(operation: tf.Operation) -> _Compute:
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
    return lambda x, *_: x[tuple(index)]


def _transpose(operation: tf.Operation) -> _Compute:
    axes = _fixed(operation, 1).tolist()
    return lambda x, _: x.transpose(axes)


_MAKERS: dict[str, Callable[[tf.Operation], _Compute]] = {
    "All": _reduction(np.all),
    "Any": _reduction(np.any),
    "ArgMax": _arg_max,
    "BroadcastTo": _broadcast,
    "Cast": _cast,
    "ConcatV2": _concat,
    "Const": _constant,
    "EnsureShape": _reshape,
    "ExpandDims": _reshape,
    "Fill": _fill,
    "GatherV2": _gather,
    "MatMul": _mat_mul,
    "Max": _reduction(np.max),
    "Mean": _reduction(np.mean),
    "Min": _reduction(np.min),
    "OneHot": _one_hot_last,
    "Pack": _pack,
    "Reshape": _reshape,
    "Split": _split,
    "SplitV": _split,
    "Squeeze": _reshape,
    "StridedSlice": _strided_slice,
    "Sum": _sum,
    "Transpose": _transpose,
}


# -- random numbers


def _normal(operation: tf.Operation, random: np.random.Generator) -> _Compute:
    shape, dtype = _shape(operation), _dtype(operation)
    return lambda _: random.standard_normal(shape, dtype)


def _uniform(operation: tf.Operation, random: np.random.Generator) -> _Compute:
    shape, dtype = _shape(operation), _dtype(operation)
    return lambda _: random.random(shape, dtype)


def _uniform_int(operation: tf.Operation, random: np.random.Generator) -> _Compute:
    shape, dtype = _shape(operation), _dtype(operation)
    return lambda _, low, high: random.integers(low, high, shape, dtype)


def _categorical(operation: tf.Operation, random: np.random.Generator) -> _Compute:
    """Draw as in the Gumbel-max trick: the largest of logits with Gumbel noise."""
    (rows, draws), dtype = _shape(operation), _dtype(operation)

    def draw(logits: np.ndarray, _: Any) -> np.ndarray:
        noise = random.gumbel(size=(rows, draws, logits.shape[1]))
        return (logits[:, None] + noise).argmax(-1).astype(dtype)

    return draw


_RANDOM: dict[str, Callable[[tf.Operation, np.random.Generator], _Compute]] = {
    "Multinomial": _categorical,
    "RandomStandardNormal": _normal,
    "RandomUniform": _uniform,
    "RandomUniformInt": _uniform_int,
}
