"""CLEAR (arXiv 1811.11682), for IMPALA: cloning on replayed unrolls.

The policy and its values stay near what was recorded.
"""

from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature import Added, Feature, Reading, Student
from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.types import Role
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.environments.types import EnvironmentSpec


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return the cloning that the flags ask for; actors make it, too, since it records values."""
    if not isinstance(config, ImpalaSettings):
        return []
    return [Cloning(config)] if config.policy_cloning_cost or config.value_cloning_cost else []


class Cloning(Feature):
    """The divergence of the policy from the one that played, and of values from recorded ones.

    "replay" is CLEAR as published: KL(mu || pi) and the squared distance of the values, on columns
    that are not new. "all" is that of elite_buffer_vtrace: KL(pi || mu) and the root of the sum of
    squared distances, on all columns.
    """

    def __init__(self, config: ImpalaSettings):
        self._config = config
        self.records = frozenset({"value"} if config.value_cloning_cost else ())

    def prepare(self, batch: Batch, reading: Reading) -> tuple[Batch, Any]:
        """Return the batch, and the values that were recorded with the next action, [T+1, B]."""
        if not self.records:
            return batch, ()
        return batch, tf.roll(reading.own_extras.value, -1, axis=0)

    def loss(self, student: Student, prepared: Any) -> Added:
        """Return both distances, each times its cost."""
        config, everything = self._config, self._config.cloned == "all"
        total, measured = 0.0, dict[str, tf.Tensor]()
        counted = student.live if student.trusted is None else student.trusted
        if not everything and student.fresh is not None:
            counted &= ~student.fresh
        if config.policy_cloning_cost:
            behaviour = student.make(student.behaviour)
            terms = student.policy.kl(behaviour) if everything else behaviour.kl(student.policy)
            measured["loss/policy_cloning"] = student.reduce(terms, counted)
            total += config.policy_cloning_cost * measured["loss/policy_cloning"]
        if config.value_cloning_cost:
            squares = tf.square(student.values - prepared)
            if everything:
                distance = _norm(squares, counted, student)
            else:
                distance = student.reduce(squares, counted)
            measured["loss/value_cloning"] = distance
            total += config.value_cloning_cost / tf.square(student.unit) * distance
        return Added(total, measured)


def _norm(squares: tf.Tensor, counted: tf.Tensor, student: Student) -> tf.Tensor:
    """Return the root of the sum of squares [T, B]."""
    total = student._replace(reduction="sum").reduce(squares, counted)
    # The root's gradient is infinite at 0.
    norm = tf.where(total > 0, tf.sqrt(tf.where(total > 0, total, 1.0)), 0.0)
    if student.reduction == "mean":
        norm /= tf.cast(tf.size(squares), norm.dtype)
    return norm
