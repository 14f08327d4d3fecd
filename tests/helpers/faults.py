"""IMPALA with faults: --algorithm=tests.helpers.faults with FAULTS="20:ulp,60:0.001".

The environment variable FAULTS maps numbers of updates to faults. `nan`: the gradient is not
finite. The other faults affect learner 1 alone: with `error` its update fails; with `ulp` its
largest weight changes by the smallest possible amount, with a number by this number.
"""

import os

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.impala.algorithm import Impala
from impala_mm.runtime.starter import process_rank


def make(config, environment):
    algorithm = Impala(config, environment)
    algorithm.update = _Faulty(algorithm)
    return algorithm


class _Faulty:
    """The algorithm's update, with faults."""

    def __init__(self, algorithm):
        self._update, self._trained = algorithm.update, algorithm.variables.trained
        self._faults = dict(fault.split(":") for fault in os.environ.get("FAULTS", "0:").split(","))
        self._updates = 0

    def __call__(self, batch, context, exchange):
        factor = tf.py_function(self._fault, [], tf.float32)
        return self._update(batch, context, _Multiplying(exchange, factor))

    def _fault(self):
        """Return the factor of the gradient, or cause the fault."""
        fault = self._faults.get(str(self._updates))
        self._updates += 1
        if fault == "nan":
            return np.float32(np.nan)
        if fault and process_rank().rank == 1:
            if fault == "error":
                raise RuntimeError("a fault of learner 1 alone")
            self._move(fault)
        return np.float32(1)

    def _move(self, by):
        weight = max(self._trained, key=lambda variable: variable.shape.num_elements())
        values = weight.numpy()
        at = np.abs(values).argmax()  # the difference survives the rounding of the next updates
        moved = values.flat[at] + float(by) if by != "ulp" else np.nextafter(values.flat[at], 9)
        values.flat[at] = moved
        weight.assign(values)


class _Multiplying:
    """An exchange that multiplies the gradients by a factor first."""

    def __init__(self, exchange, factor):
        self._exchange, self._factor = exchange, factor
        self.mean, self.differentiate = exchange.mean, exchange.differentiate

    def apply(self, optimizer, gradients, variables):
        gradients = [gradient * self._factor for gradient in gradients]
        return self._exchange.apply(optimizer, gradients, variables)
