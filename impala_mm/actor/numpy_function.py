"""A traced function of TensorFlow, computed by NumPy.

Calling a function of TensorFlow takes a sixth to a third of a millisecond, however little it
computes; NumPy computes a small network in a fraction of that. `data/numpy_translation.py`
translates the trace operation by operation, and `NumpyFunction` runs the steps. `acting` makes one,
and keeps TensorFlow's function where an operation has no translation.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.numpy_translation import Step, Translation
from impala_mm.data.tensor_io import as_operation

# Operations that TensorFlow computes faster.
_SLOW = ("AvgPool", "Conv2D", "Erf", "Erfc", "MaxPool")


class NumpyFunction:
    """A concrete function of flat tensors, computed by NumPy with the variables' last read values.

    Random numbers have the distributions that TensorFlow's have, and are not the same numbers.
    """

    def __init__(self, concrete: Any, random: np.random.Generator):
        """Translate a concrete function; raise Untranslatable if NumPy shall not compute it."""
        self._translation = translation = Translation(concrete, _SLOW)
        self._values = translation.values
        variables = [variable for _, variable in translation.read]
        reading = tf.function(lambda: [v.read_value() for v in variables], autograph=False)
        self._read_all = as_operation(reading.get_concrete_function())
        constant, self._compute_policy, self._compute = (
            _as_function(steps, random) for steps in translation.steps
        )
        constant(self._values)
        self.read_variables()

    def read_variables(self) -> None:
        """Read the variables' values, for the calls until this method is called again."""
        for (number, _), value in zip(self._translation.read, self._read_all(), strict=True):
            self._values[number] = value.numpy()
        self._compute_policy(self._values)

    def frozen(self) -> "NumpyFunction":
        """Return a copy that keeps the values of the variables that were read last."""
        other = copy.copy(self)
        other._values = list(self._values)
        return other

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """Return the function's results for arrays, which may be overwritten afterwards."""
        for number, array in zip(self._translation.inputs, arrays, strict=True):
            self._values[number] = np.array(array)
        self._compute(self._values)
        return [self._values[number] for number in self._translation.outputs]


def _as_function(steps: list[Step], random: np.random.Generator) -> Callable[[list[Any]], None]:
    """Return a function that takes these steps with a list of values.

    It is generated as Python code, since a loop over the steps takes half as long as these.
    """
    names: dict[str, Any] = {}
    lines = ["def compute(v):", "    pass"]
    for i, (call, inputs, outputs) in enumerate(steps):
        names[f"f{i}"] = call.bind(random)
        read, written = (", ".join(f"v[{n}]" for n in numbers) for numbers in (inputs, outputs))
        lines.append(f"    {written} = f{i}({read})")
    exec("\n".join(lines), names)
    return names["compute"]
