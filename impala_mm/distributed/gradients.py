"""What an algorithm's update may ask for: a gradient, and of all learners to apply it as one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.distributed.group import LearnerGroup


class AppliedGradient(NamedTuple):
    """What became of a gradient."""

    norm: tf.Tensor  # float32 []: global norm of the averaged gradient, before clipping
    clipped: tf.Tensor  # float32 []: 1 where clipping changed it, else 0


class GradientReducer:
    """All learners, as seen from within one update: made anew for each update that is traced."""

    def __init__(self, group: LearnerGroup, config: Config):
        self.group = group
        self._clipping = config.gradients_clipping  # negative: off
        self._mode = config.gradients_clipping_mode
        self._xla = config.xla
        self._waits: list[tf.Tensor] = []
        self.differentiated = False  # whether `differentiate` was asked

    def mean(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """A tensor averaged over learners; `name` must be its own within an update."""
        return self.group.mean([tensor], name)[0]

    def differentiate(
        self, compute: Callable[[], Any], variables: Sequence[tf.Variable]
    ) -> tuple[Any, list[tf.Tensor]]:
        """(what `compute` returns, the gradients of its first item, a loss): both passes.

        With --xla they are compiled as one. What follows is not: Horovod has no part in XLA, and
        each variable's optimizer step is one kernel anyway.
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
        """The gradients averaged over learners; `apply` does it, and what comes after it."""
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
        """Averages the gradients over learners, then clips, then applies them.

        In this order every learner clips the same gradient by the same factor, so that equal
        variables stay equal. A gradient that is not finite is applied nowhere.
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
        """Return, float32 [], the seconds from this update's gradients to their averages.

        What the slowest learner takes nearly nothing of: the others wait for it here. On a GPU the
        rest of the backward pass is in it: its operations are only begun when these are asked.
        """
        return tf.cast(tf.add_n(self._waits), tf.float32) if self._waits else tf.zeros([])

    def _clip(
        self, gradients: Sequence[tf.Tensor], norm: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """(clipped gradients, whether any of them changed)."""
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
