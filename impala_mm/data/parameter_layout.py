"""The acting variables as one flat vector of bytes, which a learner publishes and actors load."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.data.tensor_io import as_operation, pack, packed_spec, unpack
from impala_mm.data.trajectory import structure_digest


class ParameterLayout:
    """The place of each variable in the vector, and the data type in which it is sent."""

    def __init__(
        self, acting: Sequence[tf.Variable], trained: Sequence[tf.Variable], wire_dtype: str
    ):
        """Lay out the variables `acting`; those in `trained` are sent as `wire_dtype`.

        Other variables keep their own type: a large count, for example, would overflow float16.
        """
        self._variables = list(acting)
        halved = {id(v) for v in trained} if wire_dtype != "float32" else set()
        half = tf.as_dtype(wire_dtype)
        self._specs = [  # of the variables in the form in which they are sent
            tf.TensorSpec(v.shape, half if id(v) in halved and v.dtype == tf.float32 else v.dtype)
            for v in acting
        ]
        sizes = [spec.shape.num_elements() * spec.dtype.size for spec in self._specs]
        self._ends = np.cumsum(sizes).tolist()
        self.size = self._ends[-1] if self._ends else 0  # bytes
        self._assign: Callable[..., Any] | None = None  # `_assign_packed`, traced at the first call
        # Names are left out: they depend on how many modules the process has made before.
        self.digest = structure_digest(self._specs)

    def values(self) -> list[tf.Tensor]:
        """Return the variables' current values; call it between two updates.

        Later updates do not change the values: they write to new memory while a value is in use.
        """
        return [variable.read_value() for variable in self._variables]

    def pack(self, values: Sequence[tf.Tensor]) -> bytes:
        """Return the vector that holds these values."""
        cast = [tf.cast(v, s.dtype).numpy() for v, s in zip(values, self._specs, strict=True)]
        return b"".join(value.tobytes() for value in cast)

    def assign(self, values: Sequence[tf.Tensor]) -> None:
        """Assign the values of another layout's variables to ours, without copying them."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def assign_bytes(self, vector: bytes) -> None:
        """Assign the values in a vector that `pack` returned to the variables."""
        if len(vector) != self.size:
            raise ValueError(f"{len(vector)} bytes of parameters; the variables take {self.size}")
        content = np.frombuffer(vector, np.uint8)
        raw = pack(*[content[i:j] for i, j in itertools.pairwise([0, *self._ends])])
        if self._assign is None:
            traced = tf.function(self._assign_packed, autograph=False)
            self._assign = as_operation(traced.get_concrete_function(packed_spec(self._specs)))
        self._assign(raw)

    def _assign_packed(self, raw: tf.Tensor) -> None:
        """Assign to each variable its part of the bytes."""
        for variable, value in zip(self._variables, unpack(raw, self._specs), strict=True):
            variable.assign(tf.cast(value, variable.dtype))
