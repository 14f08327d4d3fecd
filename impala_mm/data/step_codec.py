"""Steps of environments and the answers to them as bytes, with --inference=learner.

`actor.stepping_actor` encodes the steps of each of its groups of environments, and `inference`
decodes them and answers with the encoded actions.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.environments.types import Step


class ArraysCodec:
    """Conversion of a nest of arrays [E, ...] to bytes and back, one array after the other."""

    def __init__(self, specs: Any):
        """Convert nests like `specs`, a nest of TensorSpecs without E."""
        self._structure = specs
        self._leaves = [
            (spec.shape.as_list(), np.dtype(spec.dtype.as_numpy_dtype))
            for spec in tf.nest.flatten(specs)
        ]
        self._sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in self._leaves]
        self.size = sum(self._sizes)  # bytes of one environment

    def encode(self, nest: Any) -> list[Any]:
        """Return the arrays of all E environments as objects that `b"".join` takes."""
        arrays = zip(self._leaves, tf.nest.flatten(nest), strict=True)
        return [np.ascontiguousarray(array, dtype).data for (_, dtype), array in arrays]

    def decode(self, content: bytes, environments: int) -> Any:
        """Return the nest in `content`, as read-only arrays that share its memory.

        `content` must be `size` times `environments` bytes long.
        """
        arrays, offset = [], 0
        for (shape, dtype), size in zip(self._leaves, self._sizes, strict=True):
            count = environments * size // dtype.itemsize
            array = np.frombuffer(content, dtype, count, offset)
            arrays.append(array.reshape([environments, *shape]))
            offset += environments * size
        return tf.nest.pack_sequence_as(self._structure, arrays)


class StepCodec:
    """Conversion of a `Step` of E environments to bytes and back, field after field."""

    def __init__(self, observation: Any, mask: Any = ()):
        """Convert steps whose observations and masks are like these nests of TensorSpecs."""
        flag = tf.TensorSpec([], tf.bool)
        reward = tf.TensorSpec([], tf.float32)
        self._arrays = ArraysCodec((reward, (flag,) * 4, observation, mask))
        self.size = self._arrays.size  # bytes of one environment

    def encode(self, step: Step) -> bytes:
        """Return the bytes of all E environments."""
        flags = step.terminated, step.truncated, step.first, step.fault
        return b"".join(self._arrays.encode((step.reward, flags, step.observation, step.mask)))

    def decode(self, content: bytes, environments: int) -> Step:
        """Return the step in `content`, see `ArraysCodec.decode`."""
        reward, flags, observation, mask = self._arrays.decode(content, environments)
        terminated, truncated, first, fault = flags
        return Step(reward, terminated, truncated, observation, first, fault, mask)
