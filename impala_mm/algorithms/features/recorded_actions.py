"""Costs of recorded actions: of policies before they play, and of the values of DQN and R2D2.

    teacher_cost x mean of -log pi(a) of the recorded actions a, if there is no teacher
    cql_cost x (logsumexp(Q / temperature) - Q(a) / temperature) of the actions a that were played
    margin_cost x max over b of (Q(b) + margin where b is not a) - Q(a)

Actions count where others played them, if the run has recorded games; CQL counts all otherwise.
"""

from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature import Added, Feature, Student
from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.features import teacher_losses
from impala_mm.algorithms.q_learning.settings import QLearningSettings
from impala_mm.algorithms.types import Context, Role
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return the costs that the flags ask for."""
    if role is not Role.LEARNER:
        return []
    if not isinstance(config, QLearningSettings):
        if not isinstance(config, TeacherSettings) or config.learns_from_any_policy:
            return []
        return [] if config.distils else [BehaviourCloning(config)]
    made: list[Feature] = []
    if config.cql_cost:
        made.append(ConservativeValues(config))
    if config.margin_cost:
        made.append(Margin(config))
    return made


class BehaviourCloning(Feature):
    """The cross-entropy of the policy to the actions that were played."""

    offline, online = True, False

    def __init__(self, config: TeacherSettings):
        self._cost = config.full_teacher_cost

    def begin_update(self, context: Context) -> dict[str, tf.Tensor]:
        """Return the cost as a metric."""
        return {"teacher_cost": tf.constant(self._cost)}

    def loss(self, student: Student, prepared: Any) -> Added:
        """Return the negative log-probability of the actions, times the cost."""
        terms = -student.policy.log_prob(student.actions)
        return Added(self._cost * student.reduce(terms), {"cloning_loss": student.sums(terms)})


class ConservativeValues(Feature):
    """Conservative Q-learning (CQL, arXiv 2006.04779): values of actions not played are lowered."""

    def __init__(self, config: QLearningSettings):
        self._config = config

    def loss(self, student: Student, prepared: Any) -> Added:
        """Return the negative log-probability of the actions under the softmax of the values.

        It is logsumexp(Q / temperature) - Q(a) / temperature.
        """
        assert student.softmax
        config = self._config
        counted = student.recorded if config.uses_recorded_games else None
        terms = -student.softmax(config.cql_temperature).log_prob(student.actions)
        reduced = student.reduce(terms, counted)
        return Added(config.cql_cost * reduced, {"loss/cql": student.sums(terms, counted)})


class Margin(Feature):
    """A margin between the value of the recorded action and those of others (DQfD)."""

    def __init__(self, config: QLearningSettings):
        self._config = config

    def loss(self, student: Student, prepared: Any) -> Added:
        """Return how far other actions, plus the margin, exceed the recorded one."""
        terms = teacher_losses.margin_of(
            student.values, student.allowed, student.actions, self._config.teacher_margin
        )
        reduced = student.reduce(terms, student.recorded)
        measured = {"loss/margin": student.sums(terms, student.recorded)}
        return Added(self._config.margin_cost * reduced, measured)
