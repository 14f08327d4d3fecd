"""Gradients of an algorithm's update: computed here, averaged over learners, then applied."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.distributed.group import LearnerGroup


class AppliedGradient(NamedTuple):
    """Facts about a gradient that was applied."""

    norm: tf.Tensor  # float32 []: the averaged gradient's global norm, before clipping
    clipped: tf.Tensor  # float32 []: 1 if clipping changed the gradient, else 0


class GradientReducer:
    """The gradient operations of one update; a new one is made whenever an update is traced."""

    def __init__(self, group: LearnerGroup, config: Config):
        self.group = group
        self._clipping = config.gradients_clipping  # negative: off
        self._mode = config.gradients_clipping_mode
        self._xla = config.xla
        self._waits: list[tf.Tensor] = []
        self.differentiated = False  # whether `differentiate` was called

    def mean(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Return a tensor averaged over learners; no other call within an update may use `name`."""
        return self.group.mean([tensor], name)[0]

    def differentiate(
        self, compute: Callable[[], Any], variables: Sequence[tf.Variable]
    ) -> tuple[Any, list[tf.Tensor]]:
        """Return what `compute` returns, and the gradients of its first item, which is a loss.

        With --xla, the forward and backward pass are compiled together. The averaging and the
        optimizer are not: Horovod does not work within XLA, and the optimizer's step is already
        one kernel for each variable.
        """

        def passes() -> tuple[Any, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                computed = compute()
            return computed, tape.gradient(computed[0], variables)

        self.differentiated = True
        if self._xla:
            return tf.function(passes, autograph=False, jit_compile=True)()
        return passes()

    def average(self, gradients: Sequence[tf.Tensor], name: str = "gradients") -> list[tf.Tensor]:
        """Return the gradients averaged over learners; `apply` calls this itself."""
        if self.group.size == 1:
            return self.group.mean(gradients, name)
        with tf.control_dependencies(list(gradients)):
            before = tf.timestamp()
        reduced = self.group.mean(gradients, name)
        with tf.control_dependencies(reduced):
            self._waits.append(tf.timestamp() - before)
        return reduced

    def apply(
        self,
        optimizer: snt.Optimizer,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
        name: str = "gradients",
    ) -> AppliedGradient:
        """Average the gradients over learners, clip them, then apply them.

        In this order every learner clips the same gradient by the same factor, so equal variables
        stay equal. No learner applies a gradient that is not finite.
        """
        reduced = self.average(gradients, name)
        norm = tf.linalg.global_norm(reduced)
        clipped, changed = self._clip(reduced, norm)

        def step() -> tf.Tensor:
            optimizer.apply(clipped, variables)
            return tf.constant(True)

        tf.cond(tf.math.is_finite(norm), step, lambda: tf.constant(False))
        return AppliedGradient(norm, tf.cast(changed, tf.float32))

    def wait_seconds(self) -> tf.Tensor:
        """Return the seconds, float32 [], from this update's gradients to their averages.

        It is nearly 0 on the slowest learner, for which the others wait. On a GPU it includes the
        rest of the backward pass, whose kernels may have been started but not finished.
        """
        return tf.cast(tf.add_n(self._waits), tf.float32) if self._waits else tf.zeros([])

    def _clip(
        self, gradients: Sequence[tf.Tensor], norm: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return (clipped gradients, whether any of them changed)."""
        limit = self._clipping
        if limit < 0:
            return list(gradients), tf.constant(False)
        if self._mode == "global_norm":
            return tf.clip_by_global_norm(gradients, limit, use_norm=norm)[0], norm > limit
        if self._mode == "variable_norm":
            changed = [tf.norm(g) > limit for g in gradients]
            return [tf.clip_by_norm(g, limit) for g in gradients], tf.reduce_any(changed)
        changed = [tf.reduce_any(tf.abs(g) > limit) for g in gradients]
        return [tf.clip_by_value(g, -limit, limit) for g in gradients], tf.reduce_any(changed)
