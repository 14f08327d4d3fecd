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

    def decode(self, content: bytes, environments: int, offset: int = 0) -> Any:
        """Return the nest in `content` from `offset` on, as read-only arrays that share its memory.

        The content must have `size` times `environments` bytes there.
        """
        arrays = []
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
        self._observation, self._mask = ArraysCodec(observation), ArraysCodec(mask)
        # Bytes of one environment: reward, four flags, observation and mask.
        self.size = 4 + 4 + self._observation.size + self._mask.size

    def encode(self, step: Step) -> bytes:
        """Return the bytes of all E environments."""
        flags = np.stack([step.terminated, step.truncated, step.first, step.fault])
        reward = np.asarray(step.reward, np.float32)
        observation = self._observation.encode(step.observation)
        mask = self._mask.encode(step.mask)
        return b"".join([reward.tobytes(), flags.tobytes(), *observation, *mask])

    def decode(self, content: bytes, environments: int) -> Step:
        """Return the step in `content`, as read-only arrays that share its memory.

        `content` must be `size` times `environments` bytes long.
        """
        e = environments
        reward = np.frombuffer(content, np.float32, e)
        flags = np.frombuffer(content, np.bool_, 4 * e, offset=4 * e).reshape(4, e)
        observation = self._observation.decode(content, e, offset=8 * e)
        mask = self._mask.decode(content, e, offset=(8 + self._observation.size) * e)
        terminated, truncated, first, fault = flags
        return Step(reward, terminated, truncated, observation, first, fault, mask)
