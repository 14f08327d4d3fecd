"""The loss of a policy that learns from recorded games before it plays.

    with a teacher      teacher_cost x what --distill names, by default KL(teacher || pi)
    without one         teacher_cost x mean of -log pi(a) of the recorded actions: behaviour cloning
    in both cases       baseline_cost x mean squared distance of the values from recorded returns

The returns are those of the policy that played: sums of discounted rewards to the end of the
episode, or to the end of the unroll, where the value of the last observation stands for the rest.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses, masking, value_units
from impala_mm.algorithms.advantages import GeneralisedAdvantages
from impala_mm.algorithms.distillation import Distillation
from impala_mm.algorithms.distributions import Distribution
from impala_mm.algorithms.teacher_losses import Student
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry


class Goals(NamedTuple):
    """The goals that recorded unrolls give, at their transitions [T, B]."""

    live: tf.Tensor  # bool: steps, and no resets
    actions: Any  # nest of [T, B, ...]: those recorded
    masks: Any  # nest of bool [T, B, ...]: the choices that were allowed; () without masks
    targets: tf.Tensor  # of the values; without a gradient


class Losses(NamedTuple):
    """The loss and its parts, scalars."""

    total: tf.Tensor
    baseline: tf.Tensor
    squared_error: tf.Tensor  # of the values, the mean over live steps
    metrics: dict[str, tf.Tensor]


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
        tf.nest.map_structure(lambda x: losses.mask(steps.live, x), steps.actions),
        masking.allow_all(~steps.live, entries.mask),
        estimates.value_targets,
    )


def losses_of(
    config: Config,
    goals: Goals,
    weight: tf.Tensor,
    make: Callable[..., Distribution],
    parameters: tf.Tensor,
    values: tf.Tensor,
    unit: tf.Tensor,
    distillation: Distillation | None,
    taught: Any,
) -> Losses:
    """Return the losses of a network's outputs, parameters [T+1, B, P] and values [T+1, B].

    `make` makes policies of parameters and masks, `unit` is the square of the values' unit, and
    `taught` the `distillation.Taught` of the transitions, with values in their unit.
    """
    live = goals.live
    estimates, targets = (losses.mask(live, x) for x in (values[:-1], goals.targets))

    def policy_of(given: tf.Tensor) -> Distribution:
        return make(tf.cast(losses.mask(live, given), parameters.dtype), goals.masks)

    policy = policy_of(parameters[:-1])
    if distillation:
        student = Student(policy, policy_of, estimates / tf.sqrt(unit))
        name, each = distillation.metric, distillation.terms(student, taught)
        counted = live & taught.known
        cost = distillation.cost(parameters.dtype)
    else:
        name, each = "cloning_loss", -policy.log_prob(goals.actions)
        counted = live
        cost = tf.cast(getattr(config, "full_teacher_cost", 1.0), parameters.dtype)
    errors = value_units.errors(estimates, targets, tf.sqrt(unit), huber_delta=config.huber_delta)
    baseline = losses.reduce(errors, live, weight, config.loss_reduction)
    of_policy = losses.reduce(each, counted, weight, config.loss_reduction)
    total = cost * of_policy + config.baseline_cost / unit * tf.cast(baseline, unit.dtype)
    metrics = {name: _mean(each, counted), "teacher_cost": cost}
    return Losses(total, baseline, _mean(tf.square(estimates - targets), live), metrics)


def _mean(x: tf.Tensor, live: tf.Tensor) -> tf.Tensor:
    """Return the mean of x [T, B] where `live`; 0 if that is nowhere."""
    total = tf.reduce_sum(tf.where(live, x, 0.0))
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(live, x.dtype)))
