"""The mathematics of Q-learning: n-step targets, rescaled values and the priorities of unrolls.

Values [T+1, B, A] are those of a network at the entries of unrolls, and everything about
transitions is [T, B]; `data/trajectory.py` explains both.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms.q_learning.value_distributions import Outcomes
from impala_mm.data.trajectory import Entry


class Rule(NamedTuple):
    """The rule by which targets are made."""

    discounting: float
    n_steps: int = 1  # rewards of a target before it uses a value
    rescaling: float = 0.0  # epsilon of `rescale`; 0: values are not rescaled


def rescale(x: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, which makes large values small."""
    size = tf.abs(x)
    # |x| / (sqrt(|x| + 1) + 1) is the same as sqrt(|x| + 1) - 1, without cancellation near 0.
    return tf.sign(x) * size / (tf.sqrt(size + 1.0) + 1.0) + epsilon * x


def restore(y: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Return the x of which `rescale` makes y; `epsilon` is above 0."""
    # r = sqrt(|x| + 1) - 1 solves epsilon r^2 + (1 + 2 epsilon) r = |y|. This form of the solution
    # subtracts nothing, so that it is exact for small and for large values.
    size = tf.abs(y)
    linear = 1.0 + 2.0 * epsilon
    root = 2.0 * size / (linear + tf.sqrt(linear**2 + 4.0 * epsilon * size))
    return tf.sign(y) * root * (root + 2.0)


def in_rewards(values: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Return values in the unit of rewards; `epsilon` 0: they are not rescaled."""
    return restore(values, epsilon) if epsilon else values


def n_step_targets(
    bootstrap: tf.Tensor,
    rewards: tf.Tensor,
    terminated: tf.Tensor,
    live: tf.Tensor,
    rule: Rule,
) -> tf.Tensor:
    """Return the targets [T, B, ...] of transitions from bootstraps [T+1, B, ...], not rescaled.

    `rewards`, `terminated` and `live` are those of the transitions, [T, B]. After a termination no
    value follows. A truncation ends the rewards, and the value of the episode's last observation
    follows. At the end of the unroll there are fewer rewards than `rule.n_steps`.
    """
    axes = [tf.newaxis] * (bootstrap.shape.rank - 2)
    rewards, terminated, live = (x[(..., *axes)] for x in (rewards, terminated, live))
    # The transition to a reset is not live: with the value before it as its reward, and nothing
    # after it, an earlier target that reaches it ends with that value.
    rewards = tf.where(live, tf.cast(rewards, bootstrap.dtype), bootstrap[:-1])
    gamma = tf.constant(rule.discounting, bootstrap.dtype)
    discounts = tf.where(live & ~terminated, gamma, 0.0)
    targets = bootstrap
    for _ in range(rule.n_steps):
        targets = tf.concat([rewards + discounts * targets[1:], bootstrap[-1:]], 0)
    return targets[:-1]


def find_targets(
    future: Outcomes, entries: Entry, weight: tf.Tensor, rule: Rule
) -> tuple[Outcomes, tf.Tensor]:
    """Return the targets [T, B, N] of transitions, in the unit that the network learns, and `live`.

    `future` [T+1, B, N] is what the target network expects from the entries on.
    """
    live = ~entries.first[1:] & (weight > 0)
    values = tf.where(weight[:, tf.newaxis] > 0, future.values, 0.0)
    values = in_rewards(values, rule.rescaling)
    terminated = entries.terminated[1:]
    values = n_step_targets(values, entries.reward[1:], terminated, live, rule)
    if rule.rescaling:
        values = rescale(values, rule.rescaling)
    # The probabilities are those of the outcomes that follow, wherever the rewards end.
    nothing, never = tf.zeros_like(entries.reward[1:]), tf.zeros_like(live)
    keeping = rule._replace(discounting=1.0)
    probabilities = n_step_targets(future.probabilities, nothing, never, live, keeping)
    return tf.nest.map_structure(tf.stop_gradient, Outcomes(values, probabilities)), live


def chosen(x: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Return what belongs to the actions [T, B] of x [T, B, A, ...], [T, B, ...]."""
    return tf.gather(x, actions, batch_dims=2)


class Best(NamedTuple):
    """Measurements of the best actions' values, in the unit of rewards."""

    mean: tf.Tensor  # []: 0 if nothing is live
    largest: tf.Tensor  # []: NaN if nothing is live
    gap: tf.Tensor  # []: mean distance from the second best; NaN where no action is second


def best(values: tf.Tensor, live: tf.Tensor, in_rewards: Callable[[tf.Tensor], tf.Tensor]) -> Best:
    """Return what is measured of values [T, B, A] where `live` [T, B].

    Actions that are not allowed have the value -inf.
    """
    found = tf.math.top_k(values, min(2, values.shape[-1])).values
    first, second = in_rewards(found[..., 0]), found[..., -1]
    compared = live & (second > -float("inf")) & (values.shape[-1] > 1)
    gaps = first - in_rewards(tf.where(compared, second, 0.0))

    def mean(x: tf.Tensor, where: tf.Tensor) -> tf.Tensor:
        count = tf.math.count_nonzero(where, dtype=x.dtype)
        return tf.reduce_sum(tf.where(where, x, 0.0)) / count

    unknown = tf.constant(float("nan"), first.dtype)
    any_live = tf.reduce_any(live)
    return Best(
        tf.where(any_live, mean(first, live), 0.0),
        tf.where(any_live, tf.reduce_max(tf.where(live, first, -float("inf"))), unknown),
        mean(gaps, compared),
    )


def repeat(x: tf.Tensor, copies: int) -> tf.Tensor:
    """Return copies of x [T, B, ...] side by side, [T, copies x B, ...]."""
    return x if copies == 1 else tf.concat([x] * copies, 1)


def mean_of_copies(x: tf.Tensor, copies: int) -> tf.Tensor:
    """Return the mean [T, B, ...] over copies that are side by side, [T, copies x B, ...]."""
    return x if copies == 1 else tf.add_n(tf.split(x, copies, 1)) / copies


def mixture(outcomes: Outcomes, copies: int) -> Outcomes:
    """Return the distributions [T, B, copies x N] that mix those of copies [T, copies x B, N]."""
    if copies == 1:
        return outcomes
    values, probabilities = (tf.concat(tf.split(x, copies, 1), -1) for x in outcomes)
    return Outcomes(values, probabilities / copies)


def priorities(sizes: tf.Tensor, live: tf.Tensor, largest_share: float) -> tf.Tensor:
    """Return the priorities [B] of unrolls: a mix of the largest size and the mean one.

    `sizes` [T, B] are those of the errors, 0 where not `live`. `largest_share` is the share of the
    largest one, R2D2's eta.
    """
    count = tf.reduce_sum(tf.cast(live, sizes.dtype), 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(sizes, 0), count)
    return largest_share * tf.reduce_max(sizes, 0) + (1.0 - largest_share) * mean
