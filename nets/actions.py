"""The last action as a network reads it."""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf


class Actions(Protocol):
    """The actions of an environment, which are nests of tensors."""

    @property
    def specs(self) -> Any:
        """The specs of one action: nest of tf.TensorSpec."""

    def features(self, action: Any, first: tf.Tensor) -> tf.Tensor:
        """Return actions [N, ...] as vectors, float32 [N, F]; zeros where `first`, bool [N]."""


class Choice(NamedTuple):
    """One choice among n: actions int32 []."""

    n: int

    @property
    def specs(self) -> tf.TensorSpec:
        """The spec of one action."""
        return tf.TensorSpec([], tf.int32)

    def features(self, action: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        """Return the actions as one-hot vectors; zeros where `first`."""
        return tf.one_hot(tf.where(first, -1, action), self.n)  # -1: all zeros
