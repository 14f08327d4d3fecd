"""The losses by which a student takes over a teacher's policy or values (--distill).

    policy        KL(teacher || student)
    value         squared difference of values, on average over the actions that are allowed
    best_action   -log(probability of the teacher's most likely action)
    margin        max over a of (Q(a) + margin where a is not that action) - Q(that action)

`teacher` calls them for the transitions [T, B] of a batch; they return [T, B].
"""

from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.parts import masking
from impala_mm.algorithms.parts.distributions import Distribution


class Compared(NamedTuple):
    """The policy and the values of a student, or of a teacher."""

    policy: Distribution  # [T, N]
    # Of actions, [T, N, A]; [T, N] of observations, if the student computes no others; () or None
    # if they are not compared.
    values: Any = ()
    allowed: Any = ()  # bool [T, N, A]: the actions that count; (): all


def policy(student: Compared, teacher: Compared) -> tf.Tensor:
    """Return the divergences KL(teacher || student)."""
    return teacher.policy.kl(student.policy)


def value(student: Compared, teacher: Compared) -> tf.Tensor:
    """Return the squared differences of the values; of actions, their mean over those allowed."""
    squares = tf.square(student.values - teacher.values)
    return squares if squares.shape.rank == 2 else _mean_of_allowed(squares, student.allowed)


def distance(student: Compared, teacher: Compared) -> tf.Tensor:
    """Return how far the values of actions are from the teacher's, the mean over those allowed."""
    return _mean_of_allowed(tf.abs(student.values - teacher.values), student.allowed)


def _mean_of_allowed(x: tf.Tensor, allowed: Any) -> tf.Tensor:
    """Return the mean of x [T, N, A] over the actions that are allowed; over all if none is."""
    if isinstance(allowed, tuple):
        return tf.reduce_mean(x, -1)
    allowed |= ~tf.reduce_any(allowed, -1, keepdims=True)
    return tf.reduce_sum(tf.where(allowed, x, 0.0), -1) / tf.reduce_sum(
        tf.cast(allowed, x.dtype), -1
    )


def best_action(student: Compared, teacher: Compared) -> tf.Tensor:
    """Return the negative log-probabilities of the teacher's most likely actions.

    For a student whose policy is softmax(Q / temperature), this is logsumexp(Q / temperature) minus
    Q / temperature of that action.
    """
    return -student.policy.log_prob(teacher.policy.mode())


def margin(student: Compared, teacher: Compared, size: float) -> tf.Tensor:
    """Return how far values of other actions, plus `size`, exceed that of the teacher's action."""
    return margin_of(student.values, student.allowed, teacher.policy.mode(), size)


def margin_of(values: tf.Tensor, allowed: Any, actions: tf.Tensor, size: float) -> tf.Tensor:
    """Return how far values [T, B, A] of others, plus `size`, exceed those of actions [T, B].

    It is the large-margin loss of DQfD (arXiv 1704.03732), at least 0.
    """
    others = tf.one_hot(actions, values.shape[-1], 0.0, size, dtype=values.dtype)
    largest = tf.reduce_max(masking.allowed_only(values + others, allowed), -1)
    return largest - tf.gather(values, actions, batch_dims=2)
