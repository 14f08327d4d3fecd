"""Parts that losses are made of: clipped rewards, an unroll's transitions, sums and means.

`impala.impala_loss` uses them, with the network's outputs at entries 0..T of a batch of unrolls and
with those entries' fields (`data/trajectory.py` says what an entry holds). What entry t+1 brought
followed from the output at entry t, and that pair is "transition t" here: [T+1, B, ...] comes in,
everything about transitions is [T, B].
"""

from typing import NamedTuple

import tensorflow as tf

REWARD_CLIPPING = ("abs_one", "soft_asymmetric", "none")
REDUCTIONS = ("sum", "mean")


def clip_reward(rewards: tf.Tensor, how: str) -> tf.Tensor:
    """Raw rewards as the network reads them and the loss counts them; one of REWARD_CLIPPING."""
    if how == "abs_one":
        return tf.clip_by_value(rewards, -1.0, 1.0)
    if how == "soft_asymmetric":  # a loss weighs less than a gain, and neither passes 5
        squeezed = 5.0 * tf.tanh(rewards / 5.0)
        return tf.where(rewards < 0, 0.3 * squeezed, squeezed)
    if how == "none":
        return tf.identity(rewards)
    raise ValueError(f"reward clipping {how!r} is none of {', '.join(REWARD_CLIPPING)}")


class Transitions(NamedTuple):
    """From each entry to the next, [T, B]. Where not live, nothing depends on what stood there."""

    live: tf.Tensor  # bool: somebody's step, in a column that counts
    actions: tf.Tensor  # int: what the policy at t chose; 0 where not live
    rewards: tf.Tensor  # float32: what it brought; V(o_t), a constant, where not live
    discounts: tf.Tensor  # float32: 0 after a termination and where not live
    behaviour_log_probs: tf.Tensor  # float32: of the action; 0 where not live


def transitions(
    *,
    values: tf.Tensor,
    actions: tf.Tensor,
    rewards: tf.Tensor,
    terminated: tf.Tensor,
    first: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    weight: tf.Tensor,
    discounting: float,
) -> Transitions:
    """What V-trace is told about the steps between entries [T+1, B].

    A transition into an entry with `first` is nobody's step, and so is all of a column of weight 0.
    With V(o_t) for its reward and a discount of 0 its V-trace target is V(o_t) itself: the value of
    an episode's last observation is the bootstrap of the step before, and nothing passes from the
    next episode.
    """
    live = ~first[1:] & (weight > 0)
    return Transitions(
        live,
        actions=tf.where(live, actions[1:], 0),
        rewards=tf.where(live, rewards[1:], tf.stop_gradient(values[:-1])),
        discounts=tf.where(live & ~terminated[1:], tf.cast(discounting, tf.float32), 0.0),
        behaviour_log_probs=tf.where(live, behaviour_log_probs[1:], 0.0),
    )


def reduce(terms: tf.Tensor, live: tf.Tensor, weight: tf.Tensor, reduction: str) -> tf.Tensor:
    """Terms [T, B] as one number: where live, times their column's weight [B], summed.

    "mean" divides the sum by the constants T and B, never by how many are live: else a short
    episode would weigh more, and learners that each average their part would not make one average.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"loss reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    total = tf.reduce_sum(tf.where(live, terms, 0.0) * weight)
    return total if reduction == "sum" else total / tf.cast(tf.size(terms), total.dtype)
