"""What an actor and a learner that infers say to each other: a group's step, and who asks.

An actor that only steps keeps its environments in groups: while the learner infers for one, another
steps. Each call brings what a step of a group brought (`remote_actor` makes it, `inference` reads
it); its answer is the group's next actions.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.environments import Step

TRIES = 20  # bits of an incarnation that count the connections of one life of an actor's process


class Asking(NamedTuple):
    """Who asks, and what the actor did with its time; travels as int64 [11]."""

    nonce: int  # of the learner process that the actor said hello to
    actor: int
    incarnation: int  # of the actor's connection: each begins with a reset of all environments
    group: int
    number: int  # 0, 1, 2...: steps of the group in this incarnation; 0 is the reset
    dropped: int  # unrolls that went nowhere since the last call
    acting: int  # of `transport.Times`, in microseconds, since the last call that said it
    stepping: int
    waiting: int
    playing: int
    environments: int  # E of this group

    @property
    def of(self) -> tuple[int, int, int]:
        """The group among all that a learner acts for."""
        return self.actor, self.incarnation, self.group


class StepCodec:
    """A `Step` of E environments to bytes and back: each field's bytes, one after the other."""

    def __init__(self, observation: tf.TensorSpec):
        self._shape = observation.shape.as_list()
        self._dtype = np.dtype(observation.dtype.as_numpy_dtype)
        self.size = int(np.prod(self._shape)) * self._dtype.itemsize + 4 + 4  # of one environment

    def encode(self, step: Step) -> bytes:
        """All of its E environments."""
        flags = np.stack([step.terminated, step.truncated, step.first, step.fault])
        observation = np.ascontiguousarray(step.observation, self._dtype)
        reward = np.asarray(step.reward, np.float32)
        return b"".join([reward.tobytes(), flags.tobytes(), observation.data])

    def decode(self, content: bytes, environments: int) -> Step:
        """Read-only arrays over `content`, which `size` times `environments` bytes long."""
        e = environments
        reward = np.frombuffer(content, np.float32, e)
        flags = np.frombuffer(content, np.bool_, 4 * e, offset=4 * e).reshape(4, e)
        observation = np.frombuffer(content, self._dtype, offset=8 * e)
        terminated, truncated, first, fault = flags
        shaped = observation.reshape([e, *self._shape])
        return Step(reward, terminated, truncated, shaped, first, fault)
