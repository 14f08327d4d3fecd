"""Masks of an environment's actions in an algorithm: the choices that `Entry.mask` forbids.

The policies' distributions use it, and so do algorithms that compare values of actions:

    greedy = masking.best_choice(values, entry.mask)
    random = masking.random_choice(values, entry.mask)
    value = tf.reduce_max(masking.allowed_only(values, entry.mask), -1)

An algorithm that reads masks declares it by the attribute `masks = True`. A mask is a bool tensor
[..., A] for A choices, or () if the environment offers none: then everything is allowed. A row that
allows nothing stands in entries where no action is chosen; it is taken for one that allows
everything, so that nothing becomes NaN.
"""

from typing import Any

import numpy as np
import tensorflow as tf


def allowed_only(x: tf.Tensor, mask: Any) -> tf.Tensor:
    """Return logits or values [..., A] with -inf for the choices that are forbidden."""
    if isinstance(mask, tuple):
        return x
    allowed = mask | ~tf.reduce_any(mask, -1, keepdims=True)
    return tf.where(allowed, x, tf.constant(-np.inf, x.dtype))


def best_choice(values: tf.Tensor, mask: Any) -> tf.Tensor:
    """Return the allowed choice with the largest of the values [..., A], int32 [...]."""
    return tf.argmax(allowed_only(values, mask), -1, output_type=tf.int32)


def random_choice(like: tf.Tensor, mask: Any) -> tf.Tensor:
    """Return one of the allowed choices, each with the same probability, for [..., A]: int32 [...].

    Of `like`, only the shape is used.
    """
    noise = tf.random.uniform(tf.shape(like))
    return tf.ensure_shape(best_choice(noise, mask), like.shape[:-1])


def before(masks: Any) -> Any:
    """Return the masks of the actions that entries hold, for the masks of entries [T+1, ...].

    Those are the masks of the entries before. Entry 0 gets its own, since that one is unknown.
    """
    return tf.nest.map_structure(lambda mask: tf.concat([mask[:1], mask[:-1]], 0), masks)


def allow_all(where: tf.Tensor, masks: Any) -> Any:
    """Return masks of entries 0..T, a nest of [T+1, B, ...], for transitions 0..T-1.

    All choices are allowed `where`, bool [T, B], is true.
    """
    return tf.nest.map_structure(lambda mask: mask[:-1] | where[..., tf.newaxis], masks)
