"""The entropy of a policy and what features add to its loss, as actor-critics use them."""

from types import SimpleNamespace
from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms.feature import Features, Student
from impala_mm.algorithms.features import regularisers, teacher
from impala_mm.algorithms.features.regularisers import FromReference
from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.parts.actor_critic import entropy_cost


class Measured(NamedTuple):
    """A loss, and its parts."""

    loss: tf.Tensor
    entropy: tf.Tensor  # the negative entropy, as the loss has it
    sums: dict  # by quantity: the sum over the steps that count, and their number
    features: list  # for `Features.after`

    @property
    def totals(self):
        """The sums over the steps that count."""
        return {name: x[0] for name, x in self.sums.items()}

    @property
    def counts(self):
        """The numbers of steps that count."""
        return {name: x[1] for name, x in self.sums.items()}


class Regularised:
    """The entropy's cost and the features of a policy for which the flags ask."""

    def __init__(self, config, actions):
        environment = SimpleNamespace(actions=actions)
        makers = regularisers.make, teacher.make
        self.made = [f for make in makers for f in make(config, environment, Role.LEARNER)]
        self.features, self.cost = Features(self.made), entropy_cost(config, actions)
        self.distillation = self.features.get(Distillation)
        if self.distillation:  # teachers that are not asked: tests have their answers
            self.distillation.begin([None], 1)
        self.variables = [
            *self.cost.variables,
            *(v for feature in self.made for v in feature.carried),
        ]

    def measure(
        self, policy, make, behaviour, reference, live, weight, reduction, fresh=None, taught=(),
        values=(),
    ):  # fmt: skip
        """Return what the loss of transitions [T, B] has, of given parameters [T, B, P]."""
        student = Student(
            live=tf.convert_to_tensor(live),
            weight=weight,
            reduction=reduction,
            actions=(),
            make=make,
            policy=policy,
            behaviour=behaviour,
            values=values,
            fresh=fresh,
        )
        prepared = {FromReference: reference, Distillation: taught}
        loss, measured = self.features.loss(
            student, tuple(prepared.get(type(feature), ()) for feature in self.made)
        )
        entropy = student.reduce(-policy.entropy())
        sums = {"entropy": student.sums(policy.entropy())}
        for each in measured:
            sums |= each
        loss += self.cost.read(entropy.dtype) * entropy
        return Measured(loss, entropy, sums, measured)

    def update(self, measured, exchange):
        """Adjust the costs; return metrics."""
        metrics = self.cost.update(measured.sums["entropy"], exchange)
        return metrics | self.features.after(measured.features, exchange)
