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
    if squares.shape.rank == 2:
        return squares
    if isinstance(student.allowed, tuple):
        return tf.reduce_mean(squares, -1)
    allowed = student.allowed | ~tf.reduce_any(student.allowed, -1, keepdims=True)
    count = tf.reduce_sum(tf.cast(allowed, squares.dtype), -1)
    return tf.reduce_sum(tf.where(allowed, squares, 0.0), -1) / count


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


def played(policies: Distribution, actions: Any) -> tf.Tensor:
    """Return the negative log-probabilities of recorded actions.

    For softmax(Q / temperature) this is CQL's logsumexp(Q / temperature) - Q(a) / temperature
    (arXiv 2006.04779), and also the cross-entropy of behaviour cloning.
    """
    return -policies.log_prob(actions)
