"""One update as one call into TensorFlow: made by `learner`, called once for each batch.

Forward and backward pass, all-reduce, optimizer and the reading of what actors get are one graph.
Python hands it the batch and one small tensor, and fetches one small tensor: on a GPU each number
by itself would be a copy to wait for.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import Algorithm, Context
from impala_mm.config import Config
from impala_mm.exchange import Exchange
from impala_mm.group import Group
from impala_mm.trajectory import Batch


class Outcome(NamedTuple):
    """What became of one batch."""

    metrics: dict[str, float]
    waited: float  # seconds for the other learners' gradients
    priorities: tf.Tensor  # float32 [B]: for the source
    acting: list[tf.Tensor]  # what `read` gave after the update


class NothingCompiled(Exception):
    """--xla, and an algorithm that leaves nothing to compile."""


class Update:
    """The algorithm's update, traced with the first batch: all have its shapes."""

    def __init__(
        self,
        algorithm: Algorithm,
        group: Group,
        config: Config,
        read: Callable[[], Sequence[tf.Tensor]],
    ):
        self._algorithm, self._group, self._config, self._read = algorithm, group, config, read
        self._graph: Callable[..., Any] | None = None
        self._names: list[str] = []

    def __call__(self, batch: Batch, frames: float, total: float, episode_return: float) -> Outcome:
        """Learns from a batch; the numbers are those of Context."""
        with tf.device("/CPU:0"):
            known = tf.constant([frames, total, episode_return], tf.float32)
        if self._graph is None:
            # Called by itself: to find it again by the arguments' types costs as much as the call.
            traced = tf.function(self._trace, autograph=False)
            self._graph = traced.get_concrete_function(batch, known)
        measured, priorities, acting = self._graph(batch, known)
        *values, waited = measured.numpy().tolist()
        metrics = dict(zip(self._names, values, strict=True))
        return Outcome(metrics, waited, priorities, list(acting))

    def _trace(self, batch: Batch, known: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """(metrics and, last, what was waited: float32 [N], priorities, what was read)."""
        exchange = Exchange(self._group, self._config)
        context = Context(*tf.unstack(known))
        metrics, priorities = self._algorithm.update(batch, context, exchange)
        if self._config.xla and not exchange.differentiated:
            raise NothingCompiled(
                f"--xla: --algorithm={self._config.algorithm} takes no gradient by "
                f"exchange.differentiate, which is what would be compiled: leave --xla out"
            )
        self._names = list(metrics)
        values = [tf.cast(value, tf.float32) for value in metrics.values()]
        return tf.stack([*values, exchange.waited()]), priorities, self._read()
