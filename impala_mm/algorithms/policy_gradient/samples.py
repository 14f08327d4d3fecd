"""The steps of a batch, as the minibatches of `policy_gradient` are drawn from them.

A minibatch consists of columns: of whole unrolls, T steps each, or of single steps, if the network
remembers nothing. In both cases the leading axes are [T, N], with T = 1 for single steps.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.parts import losses, masking
from impala_mm.data.trajectory import Batch, Entry


class Samples(NamedTuple):
    """N columns of T steps; entry t of a column is the one that its action t was chosen from."""

    entries: Entry  # [T, N, ...]: what the network reads; other fields are ()
    start: Any  # nest of [N, ...]: the core state before entry 0
    live: tf.Tensor  # bool [T, N]: steps of the agent; nothing else of others is ever used
    weight: tf.Tensor  # [T, N]: that of the column
    actions: Any  # nest of [T, N, ...]
    masks: Any  # nest of bool [T, N, ...]: the choices that were allowed; () without masks
    behaviour: tf.Tensor  # [T, N, P]: parameters of the policy that played
    behaviour_log_probs: tf.Tensor  # [T, N]: of the actions
    level: tf.Tensor  # int32 [T, N]: number of the column's level


def of_batch(
    batch: Batch, steps: losses.Transitions, behaviour: tf.Tensor, level: tf.Tensor
) -> Samples:
    """Return the B unrolls of a batch, whose entries a normaliser has read, as columns.

    `behaviour` are the parameters of the policy that played, [T, B, P], and `level` [B] the numbers
    of the columns' levels.
    """
    read, live = batch.unrolls, steps.live
    entries = read._replace(terminated=(), truncated=(), extras=(), mask=())

    return Samples(
        entries=tf.nest.map_structure(lambda x: x[:-1], entries),
        start=batch.start,
        live=live,
        weight=tf.broadcast_to(batch.weight, tf.shape(live)),
        actions=steps.actions,
        masks=masking.allow_all(~live, read.mask),
        behaviour=losses.mask(live, behaviour),
        behaviour_log_probs=steps.behaviour_log_probs,
        level=tf.broadcast_to(level, tf.shape(live)),
    )


def single_steps(nest: Any) -> Any:
    """Return a nest of [T, N, ...] with each step as a column of its own, [1, T x N, ...]."""
    return tf.nest.map_structure(lambda x: tf.reshape(x, [1, -1, *x.shape[2:]]), nest)


def columns(samples: Samples, chosen: tf.Tensor) -> Samples:
    """Return the columns with these numbers, int32 [M]."""
    start = tf.nest.map_structure(lambda x: tf.gather(x, chosen), samples.start)
    rest = pick(samples._replace(start=()), chosen)
    return rest._replace(start=start)


def pick(nest: Any, chosen: tf.Tensor) -> Any:
    """Return a nest of [T, N, ...] with the columns of these numbers alone, [T, M, ...]."""
    return tf.nest.map_structure(lambda x: tf.gather(x, chosen, axis=1), nest)
