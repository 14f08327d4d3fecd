"""The acting variables as one flat vector of bytes: what a learner publishes and actors load."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.tensor_io import as_operation, pack, packed_spec, unpack
from impala_mm.data.trajectory import structure_digest


class ParameterLayout:
    """Where each variable lies in the vector, and as which type it travels."""

    def __init__(
        self, acting: Sequence[tf.Variable], trained: Sequence[tf.Variable], wire_dtype: str
    ):
        """Trained weights travel as `wire_dtype`; all else as it is: a count overflows float16."""
        self._variables = list(acting)
        halved = {id(v) for v in trained} if wire_dtype != "float32" else set()
        half = tf.as_dtype(wire_dtype)
        self._specs = [  # as they travel
            tf.TensorSpec(v.shape, half if id(v) in halved and v.dtype == tf.float32 else v.dtype)
            for v in acting
        ]
        sizes = [spec.shape.num_elements() * spec.dtype.size for spec in self._specs]
        self._ends = np.cumsum(sizes).tolist()
        self.size = self._ends[-1] if self._ends else 0  # bytes
        self._assign: Callable[..., Any] | None = None  # `_assign_packed`, traced once it is needed
        # Not the names: they count the modules that a process made before.
        self.digest = structure_digest(self._specs)

    def values(self) -> list[tf.Tensor]:
        """The variables' values now; call it between two updates.

        They stay what they are: an update of a variable whose value somebody holds makes a new one.
        """
        return [variable.read_value() for variable in self._variables]

    def pack(self, values: Sequence[tf.Tensor]) -> bytes:
        """Values as the vector."""
        cast = [tf.cast(v, s.dtype).numpy() for v, s in zip(values, self._specs, strict=True)]
        return b"".join(value.tobytes() for value in cast)

    def assign(self, values: Sequence[tf.Tensor]) -> None:
        """The values of another layout's variables to ours, without a copy."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def assign_bytes(self, vector: bytes) -> None:
        """Assigns a vector that `pack` made to the variables."""
        if len(vector) != self.size:
            raise ValueError(f"{len(vector)} bytes of parameters where {self.size} are due")
        content = np.frombuffer(vector, np.uint8)
        raw = pack(*[content[i:j] for i, j in itertools.pairwise([0, *self._ends])])
        if self._assign is None:
            traced = tf.function(self._assign_packed, autograph=False)
            self._assign = as_operation(traced.get_concrete_function(packed_spec(self._specs)))
        self._assign(raw)

    def _assign_packed(self, raw: tf.Tensor) -> None:
        """Each variable's bytes to it."""
        for variable, value in zip(self._variables, unpack(raw, self._specs), strict=True):
            variable.assign(tf.cast(value, variable.dtype))
