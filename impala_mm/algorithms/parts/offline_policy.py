"""The loss of a policy that learns from recorded games before it plays.

    baseline_cost x mean squared distance of the values from recorded returns
    + what features add: the divergence from a teacher, or behaviour cloning

The returns are those of the policy that played: sums of discounted rewards to the end of the
episode, or to the end of the unroll, where the value of the last observation stands for the rest.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.feature import Features, Student
from impala_mm.algorithms.parts import losses, masking, value_units
from impala_mm.algorithms.parts.advantages import GeneralisedAdvantages
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry


class Goals(NamedTuple):
    """The goals that recorded unrolls give, at their transitions [T, B]."""

    live: tf.Tensor  # bool: steps, and no resets
    actions: Any  # nest of [T, B, ...]: those recorded
    masks: Any  # nest of bool [T, B, ...]: the choices that were allowed; () without masks
    targets: tf.Tensor  # of the values; without a gradient


def goals(entries: Entry, weight: tf.Tensor, values: tf.Tensor, discounting: float) -> Goals:
    """Return what entries [T+1, B, ...] teach; `values` [T+1, B] are the network's own."""
    values = tf.stop_gradient(values)
    steps = losses.transitions(
        values=values,
        actions=entries.action,
        rewards=entries.reward,
        terminated=entries.terminated,
        first=entries.first,
        behaviour_log_probs=tf.zeros_like(values),
        weight=weight,
        discounting=discounting,
    )
    estimates = GeneralisedAdvantages(lambda_=1.0)(steps, values, tf.zeros_like(values[:-1]))
    return Goals(
        steps.live,
        steps.actions,
        masking.allow_all(~steps.live, entries.mask),
        estimates.value_targets,
    )


class OfflineLosses(NamedTuple):
    """The loss and its parts, scalars."""

    total: tf.Tensor
    baseline: tf.Tensor
    squared_error: tf.Tensor  # of the values, the mean over live steps
    measured: Any  # by the features


def losses_of(
    config: Config,
    goals: Goals,
    weight: tf.Tensor,
    make: Callable[..., Distribution],
    parameters: tf.Tensor,
    values: tf.Tensor,
    unit: tf.Tensor,
    features: Features,
    prepared: Any,
) -> OfflineLosses:
    """Return the losses of a network's outputs, parameters [T+1, B, P] and values [T+1, B].

    `make` makes policies of parameters and masks, `unit` is the square of the values' unit, and
    `prepared` what the features have prepared for the transitions.
    """

    def policy_of(given: tf.Tensor) -> Distribution:
        return make(tf.cast(losses.mask(goals.live, given), parameters.dtype), goals.masks)

    student = Student(
        live=goals.live,
        weight=weight,
        reduction=config.loss_reduction,
        actions=goals.actions,
        make=policy_of,
        policy=policy_of(parameters[:-1]),
        values=losses.mask(goals.live, values[:-1]),
        unit=tf.sqrt(tf.reduce_mean(unit)),
    )
    targets = losses.mask(goals.live, goals.targets)
    errors = value_units.errors(
        student.values, targets, tf.sqrt(unit), huber_delta=config.huber_delta
    )
    baseline = student.reduce(errors)
    added, measured = features.loss(student, prepared)
    total = added + value_units.cost(config.baseline_cost, unit, errors, student.reduce)
    squares, count = tf.unstack(student.sums(tf.square(student.values - targets)))
    return OfflineLosses(total, baseline, tf.math.divide_no_nan(squares, count), measured)
