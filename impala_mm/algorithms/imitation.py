"""Imitation in Q-learning: the costs of teachers, and of actions that were played.

    teacher_cost x what --distill names (`distillation`), by the policy softmax(Q / temperature)
    cql_cost x (logsumexp(Q / temperature) - Q(a) / temperature) of the actions a that were played
    margin_cost x max over b of (Q(b) + margin where b is not a) - Q(a)

Actions count where others played them, if the run has recorded games; CQL counts all otherwise.
`q_learning` adds them to the loss of a batch, with the weights that replay gives to its unrolls.
Values are in the unit of rewards where a softmax is taken of them, since teachers answer in that
unit; differences of values are in the unit that the network learns (--value_rescaling).
"""

from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses, masking, policies, q_values, teacher_losses
from impala_mm.algorithms.distillation import Distillation, Taught
from impala_mm.algorithms.q_learning_settings import Settings
from impala_mm.algorithms.teacher_losses import Student
from impala_mm.data.trajectory import Entry


class Steps(NamedTuple):
    """The steps of a batch that its loss counts."""

    values: tf.Tensor  # [T, copies x B, A]: those of the network, of several copies of the batch
    entries: Entry  # [T+1, B, ...]
    live: tf.Tensor  # bool [T, B]
    weight: tf.Tensor  # [B]
    recorded: tf.Tensor  # bool [B]: the columns that are recorded games


class Imitation:
    """The costs of teachers and of recorded actions."""

    def __init__(self, config: Settings):
        self._config = config
        self.distillation = Distillation(config) if config.distils else None

    def measure(
        self, steps: Steps, taught: Any, copies: int
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return what is added to the loss, and metrics: the means of its parts.

        `taught` is the `Taught` of the T steps, or () if there is no teacher.
        """
        config, live = self._config, steps.live
        dtype = steps.values.dtype
        masks = masking.allow_all(~live, steps.entries.mask)
        masks = tf.nest.map_structure(lambda x: q_values.repeat(x, copies), masks)
        values = losses.mask(q_values.repeat(live, copies), steps.values)
        total, metrics = tf.zeros([], dtype), dict[str, tf.Tensor]()

        def policy(temperature: float) -> policies.Categorical:
            in_rewards = q_values.in_rewards(values, config.value_rescaling)
            return policies.categorical(in_rewards / temperature, masks)

        def add(terms: tf.Tensor, counted: tf.Tensor, cost: tf.Tensor) -> tf.Tensor:
            terms = q_values.mean_of_copies(terms, copies)
            reduced = losses.reduce(terms, counted, steps.weight, config.loss_reduction)
            mean = tf.reduce_sum(losses.mask(counted, terms))
            count = tf.reduce_sum(tf.cast(counted, dtype))
            return total + cost * reduced, mean / count

        if self.distillation and taught:
            student = Student(
                policy(config.teacher_temperature),
                lambda parameters: policies.categorical(tf.cast(parameters, dtype), masks),
                values,
                masks,
            )
            terms = self.distillation.terms(student, self._repeated(taught, copies))
            cost = self.distillation.cost(dtype)
            total, mean = add(terms, live & taught.known, cost)
            metrics[self.distillation.metric] = self.distillation.measured(mean)
        actions = q_values.repeat(losses.mask(live, steps.entries.action[1:]), copies)
        if config.cql_cost:
            counted = live & steps.recorded if config.uses_recorded_games else live
            terms = teacher_losses.played(policy(config.cql_temperature), actions)
            total, metrics["loss/cql"] = add(terms, counted, tf.constant(config.cql_cost, dtype))
        if config.margin_cost:
            terms = teacher_losses.margin_of(values, masks, actions, config.teacher_margin)
            cost = tf.constant(config.margin_cost, dtype)
            total, metrics["loss/margin"] = add(terms, live & steps.recorded, cost)
        return total, metrics

    def _repeated(self, taught: Taught, copies: int) -> Taught:
        """Return what is taught to each copy of a batch, in the unit that the network learns."""
        epsilon = self._config.value_rescaling
        values = taught.values
        if epsilon:
            values = tuple(q_values.rescale(x, epsilon) for x in values)
        return tf.nest.map_structure(
            lambda x: q_values.repeat(x, copies), taught._replace(values=values)
        )
