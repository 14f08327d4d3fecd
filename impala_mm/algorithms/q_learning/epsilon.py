"""Epsilon-greedy actions: the share of actions that are chosen at random.

ladder      a share for each environment, from large to small, as in Ape-X and R2D2
decay       one share for all, which falls during the run, as in DQN
"""

import tensorflow as tf

from impala_mm.algorithms.interface import EnvironmentNumber
from impala_mm.algorithms.parts import masking

_ALONE = 4.5  # the power of an environment that is the only one: the middle of the ladder


def of_ladder(environment: EnvironmentNumber, base: float) -> tf.Tensor:
    """Return `base` to the power of linspace(1, 8, count), at each environment's number."""
    last = tf.cast(environment.count - 1, tf.float32)
    place = tf.cast(environment.number, tf.float32) / tf.maximum(last, 1.0)
    power = tf.where(last > 0, 1.0 + 7.0 * place, _ALONE)
    return tf.pow(tf.constant(base, tf.float32), power)


def decayed(frames: tf.Tensor, first: float, last: float, over: float) -> tf.Tensor:
    """Return the share after this number of frames: from `first` in a line to `last`."""
    done = tf.minimum(tf.cast(frames, tf.float32) / over, 1.0) if over else tf.ones([])
    return first + (last - first) * done


def choose(values: tf.Tensor, mask: object, epsilon: tf.Tensor) -> tf.Tensor:
    """Return the best of the actions, or with probability `epsilon` [B] any: int32 [B].

    `values` are [B, A], and `mask` is that of the entries.
    """
    explores = tf.random.uniform(tf.shape(epsilon)) < epsilon
    greedy = masking.best_choice(values, mask)
    return tf.where(explores, masking.random_choice(values, mask), greedy)
