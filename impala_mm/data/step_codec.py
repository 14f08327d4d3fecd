"""Steps of environments as bytes, which an actor sends with --inference=learner.

`actor.stepping_actor` encodes the steps of each of its groups of environments; `inference` decodes
them.
"""

import numpy as np
import tensorflow as tf

from impala_mm.environments.types import Step


class StepCodec:
    """Conversion of a `Step` of E environments to bytes and back, field after field."""

    def __init__(self, observation: tf.TensorSpec):
        self._shape = observation.shape.as_list()
        self._dtype = np.dtype(observation.dtype.as_numpy_dtype)
        # Bytes of one environment: observation, reward and four flags.
        self.size = int(np.prod(self._shape)) * self._dtype.itemsize + 4 + 4

    def encode(self, step: Step) -> bytes:
        """Return the bytes of all E environments."""
        flags = np.stack([step.terminated, step.truncated, step.first, step.fault])
        observation = np.ascontiguousarray(step.observation, self._dtype)
        reward = np.asarray(step.reward, np.float32)
        return b"".join([reward.tobytes(), flags.tobytes(), observation.data])

    def decode(self, content: bytes, environments: int) -> Step:
        """Return the step in `content`, as read-only arrays that share its memory.

        `content` must be `size` times `environments` bytes long.
        """
        e = environments
        reward = np.frombuffer(content, np.float32, e)
        flags = np.frombuffer(content, np.bool_, 4 * e, offset=4 * e).reshape(4, e)
        observation = np.frombuffer(content, self._dtype, offset=8 * e)
        terminated, truncated, first, fault = flags
        shaped = observation.reshape([e, *self._shape])
        return Step(reward, terminated, truncated, shaped, first, fault)
