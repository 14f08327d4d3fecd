"""A traced function of TensorFlow, computed by NumPy.

Calling a function of TensorFlow takes a sixth to a third of a millisecond, however little it
computes; NumPy computes a small network in a fraction of that. `NumpyFunction` translates the trace
operation by operation (`numpy_operations`), so it computes whatever the algorithm and its network
define. `acting` makes one, and keeps TensorFlow's function where an operation has no translation.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.actor import numpy_operations
from impala_mm.actor.numpy_operations import Untranslatable
from impala_mm.data.tensor_io import as_operation

_CONSTANT, _POLICY, _CALL = range(3)  # a value changes never, with the policy, or with each call
_SAME = {"Identity", "IdentityN", "ReadVariableOp", "StopGradient"}  # outputs are the inputs

# A computation, and the numbers of the values that it reads and writes.
_Step = tuple[Callable[..., Any], list[int], list[int]]


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
        compute = numpy_operations.translate(operation, random)
        changes = max((self._changes[number] for number in inputs), default=_CONSTANT)
        changes = _CALL if numpy_operations.is_random(operation) else changes
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
