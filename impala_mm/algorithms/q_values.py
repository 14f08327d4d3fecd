"""The mathematics of Q-learning: n-step targets, rescaled values and the priorities of unrolls.

Values [T+1, B, A] are those of a network at the entries of unrolls, and everything about
transitions is [T, B]; `data/trajectory.py` explains both.
"""

from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses, masking
from impala_mm.data.trajectory import Entry


class Errors(NamedTuple):
    """The errors of the values of the actions that were chosen, [T, B]."""

    error: tf.Tensor  # target less value; 0 where not live
    live: tf.Tensor  # bool: a step of the agent, in a column of positive weight


class Rule(NamedTuple):
    """The rule by which targets are made."""

    discounting: float
    n_steps: int = 1  # rewards of a target before it uses a value
    double: bool = True  # the network chooses the action that the target network values
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


def bootstraps(values: tf.Tensor, future: tf.Tensor, mask: object, rule: Rule) -> tf.Tensor:
    """Return what the target network expects from each entry on, [T+1, B], not rescaled.

    `future` are its values, `values` those of the network in training, and `mask` is that of the
    entries.
    """
    best = masking.best_choice(values if rule.double else future, mask)
    found = tf.stop_gradient(tf.gather(future, best, batch_dims=2))
    return restore(found, rule.rescaling) if rule.rescaling else found


def n_step_targets(
    bootstrap: tf.Tensor,
    rewards: tf.Tensor,
    terminated: tf.Tensor,
    live: tf.Tensor,
    rule: Rule,
) -> tf.Tensor:
    """Return the targets [T, B] of transitions from bootstraps [T+1, B], without rescaling.

    `rewards` and `terminated` are those of the transitions. After a termination no value follows.
    A truncation ends the rewards, and the value of the episode's last observation follows. At the
    end of the unroll there are fewer rewards than `rule.n_steps`.
    """
    # The transition to a reset is not live: with the value before it as its reward, and nothing
    # after it, an earlier target that reaches it ends with that value.
    rewards = tf.where(live, tf.cast(rewards, bootstrap.dtype), bootstrap[:-1])
    gamma = tf.constant(rule.discounting, bootstrap.dtype)
    discounts = tf.where(live & ~terminated, gamma, 0.0)
    targets = bootstrap
    for _ in range(rule.n_steps):
        targets = tf.concat([rewards + discounts * targets[1:], bootstrap[-1:]], 0)
    return targets[:-1]


def find_errors(
    values: tf.Tensor, future: tf.Tensor, entries: Entry, weight: tf.Tensor, rule: Rule
) -> Errors:
    """Return the errors of values [T+1, B, A], in the unit that the network learns.

    `future` [T+1, B, A] are the target network's values. Gradients reach `values` only by the
    actions that were chosen.
    """
    live = ~entries.first[1:] & (weight > 0)
    found = bootstraps(values, future, entries.mask, rule)
    found = tf.where(weight > 0, found, tf.zeros([], found.dtype))
    targets = n_step_targets(found, entries.reward[1:], entries.terminated[1:], live, rule)
    if rule.rescaling:
        targets = rescale(targets, rule.rescaling)
    actions = losses.mask(live, entries.action[1:])
    chosen = tf.gather(values[:-1], actions, batch_dims=2)
    return Errors(tf.where(live, targets - chosen, 0.0), live)


def priorities(errors: Errors, largest_share: float) -> tf.Tensor:
    """Return the priorities [B] of unrolls: a mix of the largest error and the mean one.

    `largest_share` is that of the largest one, R2D2's eta.
    """
    size, dtype = tf.abs(errors.error), errors.error.dtype
    count = tf.reduce_sum(tf.cast(errors.live, dtype), 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(size, 0), count)
    return largest_share * tf.reduce_max(size, 0) + (1.0 - largest_share) * mean
