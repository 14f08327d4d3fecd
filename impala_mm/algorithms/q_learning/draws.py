"""The random numbers of Q-networks: levels of quantiles, noise of layers, shifts of images.

Acting    for each environment its own
Trained   for an update: N learners with an Nth of the columns draw what one with all would
Calm      none, for tests and evaluation: levels are evenly spaced, and nothing has noise
"""

from typing import Protocol

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.parts import update_seeds
from impala_mm.distributed.group import LearnerGroup
from nets import noisy


class Draws(Protocol):
    """The random numbers for one reading of entries."""

    @property
    def noise(self) -> noisy.Draw | None:
        """What draws the noise of noisy layers; None: they have none."""

    def levels(self, like: tf.Tensor, count: int) -> tf.Tensor:
        """Return `count` levels of quantiles for each element of [...], in [0, 1], [..., count]."""


class Calm:
    """No random numbers."""

    noise = None

    def levels(self, like: tf.Tensor, count: int) -> tf.Tensor:
        """Return the middles of `count` equal parts of [0, 1], [..., count]."""
        middles = (np.arange(count, dtype=np.float32) + 0.5) / count
        return tf.zeros_like(like, tf.float32)[..., tf.newaxis] + middles


class Acting:
    """Random numbers of their own for each of B environments, which explore by [B]."""

    def __init__(self, exploration: tf.Tensor):
        """Scale the noise by `exploration` [B], so that there is none where it is 0."""
        self._exploration = exploration

    def noise(self, inputs: int, outputs: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the factors of a layer's noise, [B, inputs] and [B, outputs]."""
        batch = tf.shape(self._exploration)[0]
        of_inputs, of_outputs = (
            noisy.squashed(tf.random.normal([batch, size])) for size in (inputs, outputs)
        )
        return of_inputs, of_outputs * self._exploration[:, tf.newaxis]

    def levels(self, like: tf.Tensor, count: int) -> tf.Tensor:
        """Return uniform levels [..., count]."""
        return tf.random.uniform(tf.concat([tf.shape(like), [count]], 0))


class Trained:
    """The random numbers of one update, which depend on the run's seed and the update's number.

    The columns of the batch are `copies` of B columns, one after the other.
    """

    def __init__(
        self, group: LearnerGroup, seed: int, update: tf.Tensor, use: int, columns: int, copies: int
    ):
        """Draw for this learner's B `columns`; `use` tells several readings of an update apart."""
        self._group, self._columns, self._copies = group, columns, copies
        self._seed, self._update = seed, update
        self._calls = 1000 * use

    def noise(self, inputs: int, outputs: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the factors of a layer's noise, [1, inputs] and [1, outputs]: the same for all."""
        return tuple(
            noisy.squashed(tf.random.stateless_normal([1, size], self._next_seed()))
            for size in (inputs, outputs)
        )

    def levels(self, like: tf.Tensor, count: int) -> tf.Tensor:
        """Return uniform levels [T, columns, count] for `like` [T, columns]."""
        # A recurrent network's outputs have no length that is known while it is traced.
        return self._of_columns(tf.shape(like)[0], count)

    def offsets(self, most: int) -> tf.Tensor:
        """Return the rows and columns of pixels by which to shift images, int32 [columns, 2].

        They are from -most to most.
        """
        uniform = self._of_columns(1, 2)[0]
        return tf.cast(tf.floor(uniform * (2 * most + 1)), tf.int32) - most

    def _of_columns(self, steps: int | tf.Tensor, count: int) -> tf.Tensor:
        """Return uniform numbers [steps, columns, count], this learner's part of everybody's."""
        everybodys = [steps, self._copies, self._group.size, self._columns, count]
        drawn = tf.random.stateless_uniform(everybodys, self._next_seed())
        mine = drawn[:, :, self._group.rank]
        return tf.reshape(mine, [steps, self._copies * self._columns, count])

    def _next_seed(self) -> tf.Tensor:
        self._calls += 1
        return update_seeds.of_update(self._seed, self._update, self._calls)
