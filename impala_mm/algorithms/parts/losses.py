"""Parts of losses: clipped rewards, the transitions of an unroll, and the sum over a batch.

`impala_loss` calls these functions with the network's outputs at entries 0..T of a batch of
unrolls and with the fields of these entries (`data/trajectory.py` explains entries). The
action, reward and end of an episode in entry t+1 follow from the output at entry t; this pair is
called transition t. So inputs are [T+1, B, ...] and everything about transitions is [T, B].
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.parts import masking
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.distributed.gradients import GradientReducer

REWARD_CLIPPING = ("abs_one", "soft_asymmetric", "none")
REDUCTIONS = ("sum", "mean")


def clip_reward(rewards: tf.Tensor, how: str) -> tf.Tensor:
    """Return raw rewards clipped for the network and the loss; `how` is one of REWARD_CLIPPING."""
    if how == "abs_one":
        return tf.clip_by_value(rewards, -1.0, 1.0)
    if how == "soft_asymmetric":  # negative rewards count less; none exceeds 5
        squeezed = 5.0 * tf.tanh(rewards / 5.0)
        return tf.where(rewards < 0, 0.3 * squeezed, squeezed)
    if how == "none":
        return tf.identity(rewards)
    raise ValueError(f"reward clipping {how!r} is none of {', '.join(REWARD_CLIPPING)}")


class Transitions(NamedTuple):
    """The transitions from each entry to the next, [T, B].

    Where `live` is false, the other fields do not depend on the entries' contents.
    """

    live: tf.Tensor  # bool: a step of the agent, in a column of positive weight
    actions: Any  # nest of [T, B, ...]: the action that was chosen at entry t; 0 where not live
    rewards: tf.Tensor  # float32: the reward of this action; V(o_t), a constant, where not live
    discounts: tf.Tensor  # float32: 0 after a termination and where not live
    behaviour_log_probs: tf.Tensor  # float32: log-probability of the action; 0 where not live


def transitions(
    *,
    values: tf.Tensor,
    actions: Any,
    rewards: tf.Tensor,
    terminated: tf.Tensor,
    first: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    weight: tf.Tensor,
    discounting: float,
) -> Transitions:
    """Return the transitions [T, B] between entries [T+1, B], as V-trace takes them.

    A transition into an entry with `first` is not a step of the agent, and neither is any in a
    column of weight 0: they are not live. With V(o_t) as its reward and a discount of 0, the
    V-trace target of such a transition is V(o_t) itself. So the value of an episode's last
    observation is the bootstrap of the step before it, and nothing of the next episode reaches it.
    """
    live = ~first[1:] & (weight > 0)
    return Transitions(
        live,
        actions=tf.nest.map_structure(lambda part: mask(live, part[1:]), actions),
        rewards=tf.where(live, tf.cast(rewards[1:], values.dtype), tf.stop_gradient(values[:-1])),
        discounts=tf.where(live & ~terminated[1:], tf.cast(discounting, values.dtype), 0.0),
        behaviour_log_probs=tf.where(live, behaviour_log_probs[1:], 0.0),
    )


def step_policy(
    distribution: Callable[..., Distribution],
    parameters: tf.Tensor,
    live: tf.Tensor,
    masks: Any = (),
) -> Distribution:
    """Return the policy at the transitions [T, B] from its parameters at entries, [T+1, B, P].

    `distribution` makes it of parameters and a mask, such as `PolicyDistribution.make`; `masks` are
    those of the entries. Where `live` is false, the policy is one that depends on neither, and
    allows every action, so that all its numbers and gradients are finite.
    """
    return distribution(mask(live, parameters[:-1]), masking.allow_all(~live, masks))


def mask(live: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Return x [T, B, ...] with zeros where `live` [T, B] is false."""
    x = tf.convert_to_tensor(x)
    return select(live, x, tf.zeros([], x.dtype))


def select(condition: tf.Tensor, x: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Return x [..., *shape] where `condition` [...] is true, and `other` elsewhere."""
    axes = [tf.newaxis] * (len(x.shape) - len(condition.shape))
    return tf.where(condition[(..., *axes)], x, other)


class Moments(NamedTuple):
    """Sums over live transitions, from which `standardise` computes mean and deviation."""

    count: tf.Tensor  # float64 []
    total: tf.Tensor  # float64 []: the sum of the numbers
    squares: tf.Tensor  # float64 []: the sum of their squares

    def variance(self) -> tf.Tensor:
        """Return the variance, float64 []; 0 if there are no numbers."""
        mean = tf.math.divide_no_nan(self.total, self.count)
        return tf.maximum(tf.math.divide_no_nan(self.squares, self.count) - mean**2, 0.0)


def moments(x: tf.Tensor, live: tf.Tensor, exchange: GradientReducer | None = None) -> Moments:
    """Return the moments of x [T, B] where `live`; with `exchange`, their means over learners.

    `standardise` may be given those means, since it only needs ratios of the moments.
    """
    x = tf.cast(mask(live, x), tf.float64)
    count = tf.reduce_sum(tf.cast(live, tf.float64))
    own = Moments(count, tf.reduce_sum(x), tf.reduce_sum(tf.square(x)))
    if exchange is None:
        return own
    return Moments(*tf.unstack(exchange.mean(tf.stack(own), name="moments")))


def standardise(x: tf.Tensor, live: tf.Tensor, of: Moments | None = None) -> tf.Tensor:
    """Return x [T, B] less its mean where `live`, and divided by its standard deviation there.

    Mean and deviation are those of the moments `of`; None: those of x.
    """
    of = of or moments(x, live)
    mean = tf.math.divide_no_nan(of.total, of.count)
    deviation = tf.sqrt(of.variance()) + 1e-6
    return mask(live, tf.cast((tf.cast(x, tf.float64) - mean) / deviation, x.dtype))


def reduce(terms: tf.Tensor, live: tf.Tensor, weight: tf.Tensor, reduction: str) -> tf.Tensor:
    """Return the sum, or mean, of the live `terms` [T, B], each times its column's weight [B].

    "mean" divides the sum by the constant T x B and not by the number of live terms: otherwise
    short episodes would count more, and the average of several learners' means would not be the
    mean over all their steps.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"loss reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    total = tf.reduce_sum(tf.where(live, terms, 0.0) * tf.cast(weight, terms.dtype))
    return total if reduction == "sum" else total / tf.cast(tf.size(terms), total.dtype)


def per_step(loss: tf.Tensor, live: tf.Tensor, reduction: str) -> tf.Tensor:
    """Return what `reduce` returned for terms like `live` [T, B], as the mean over T x B."""
    return loss if reduction == "mean" else loss / tf.cast(tf.size(live), loss.dtype)


def as_metrics(
    parts: Mapping[str, tf.Tensor], live: tf.Tensor, reduction: str
) -> dict[str, tf.Tensor]:
    """Return the parts of a loss as metrics: as `reduce` returned them, and `per_step`."""
    return {f"loss/{name}": x for name, x in parts.items()} | {
        f"loss_per_step/{name}": per_step(x, live, reduction) for name, x in parts.items()
    }
