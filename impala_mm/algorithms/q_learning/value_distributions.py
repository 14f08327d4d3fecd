"""Distributions of the return after an action, as a Q-network learns them: the mean, or all of it.

    Expected     the mean alone                                        (DQN)
    Categorical  probabilities of fixed returns, the atoms             (C51, arXiv 1707.06887)
    Quantiles    the returns at given levels of probability            (IQN, arXiv 1806.06923)

For each action a network computes N numbers, whose meaning a kind of distribution knows. The target
of a step is a discrete distribution whatever the kind, `Outcomes`, so that rewards of n steps, a
discount and a rescaling change only the outcomes' values.
"""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.parts import value_units
from impala_mm.algorithms.q_learning.settings import ActionValueSettings

_TINY = 1e-30  # below it, a probability counts as 0


class Outcomes(NamedTuple):
    """Discrete distributions of returns."""

    values: tf.Tensor  # [..., N]
    probabilities: tf.Tensor  # [..., N], which sum to 1

    def mean(self) -> tf.Tensor:
        """Return the means [...]."""
        return tf.reduce_sum(self.values * self.probabilities, -1)


class Distribution(Protocol):
    """A kind of distribution, described by N numbers."""

    def mean(self, numbers: tf.Tensor) -> tf.Tensor:
        """Return the means [...] of distributions described by numbers [..., N]."""

    def outcomes(self, numbers: tf.Tensor) -> Outcomes:
        """Return the distributions [..., N] that numbers [..., N] describe."""

    def losses(self, numbers: tf.Tensor, levels: tf.Tensor, targets: Outcomes) -> tf.Tensor:
        """Return how far distributions are from their targets, [...].

        `numbers` are [..., N], `targets` [..., M]. `levels` [..., N] are those of quantiles.
        """


class Expected:
    """The mean alone: one number."""

    def __init__(self, huber_delta: float):
        """Count errors beyond `huber_delta` linearly."""
        self._delta = huber_delta

    def mean(self, numbers: tf.Tensor) -> tf.Tensor:
        """Return the number."""
        return tf.squeeze(numbers, -1)

    def outcomes(self, numbers: tf.Tensor) -> Outcomes:
        """Return the number as the only outcome."""
        return Outcomes(numbers, tf.ones_like(numbers))

    def losses(self, numbers: tf.Tensor, levels: tf.Tensor, targets: Outcomes) -> tf.Tensor:
        """Return half the squared differences from the targets' means, or Huber's loss."""
        del levels
        return value_units.errors(self.mean(numbers), targets.mean(), huber_delta=self._delta)


class Categorical:
    """The probabilities of `num_atoms` returns from `least` to `most`, as logits."""

    def __init__(self, num_atoms: int, least: float, most: float):
        self._atoms = np.linspace(least, most, num_atoms)

    def mean(self, numbers: tf.Tensor) -> tf.Tensor:
        """Return the atoms' mean."""
        return self.outcomes(numbers).mean()

    def outcomes(self, numbers: tf.Tensor) -> Outcomes:
        """Return the atoms with their probabilities."""
        atoms = tf.constant(self._atoms, numbers.dtype)
        return Outcomes(tf.zeros_like(numbers) + atoms, tf.nn.softmax(numbers))

    def losses(self, numbers: tf.Tensor, levels: tf.Tensor, targets: Outcomes) -> tf.Tensor:
        """Return KL(projected target || distribution), whose gradient is the cross entropy's."""
        del levels
        goals = project(targets, tf.constant(self._atoms, numbers.dtype))
        present = goals > _TINY
        of_goals = tf.math.log(tf.where(present, goals, 1.0))
        terms = goals * tf.where(present, of_goals - tf.nn.log_softmax(numbers), 0.0)
        return tf.reduce_sum(terms, -1)


class Quantiles:
    """The returns that are reached with given levels of probability."""

    def __init__(self, huber_delta: float):
        """Count errors beyond `huber_delta`, which is finite, linearly; 0: all of them."""
        self._delta = huber_delta

    def mean(self, numbers: tf.Tensor) -> tf.Tensor:
        """Return the quantiles' mean."""
        return tf.reduce_mean(numbers, -1)

    def outcomes(self, numbers: tf.Tensor) -> Outcomes:
        """Return the quantiles with equal probabilities."""
        return Outcomes(numbers, tf.ones_like(numbers) / numbers.shape[-1])

    def losses(self, numbers: tf.Tensor, levels: tf.Tensor, targets: Outcomes) -> tf.Tensor:
        """Return the quantile Huber losses: summed over quantiles, averaged over the target."""
        errors = targets.values[..., tf.newaxis, :] - numbers[..., tf.newaxis]  # [..., N, M]
        above = tf.cast(errors < 0, errors.dtype)
        sizes = tf.abs(errors)
        if self._delta:
            none = tf.zeros_like(errors)
            sizes = value_units.errors(none, errors, huber_delta=self._delta) / self._delta
        terms = tf.abs(levels[..., tf.newaxis] - above) * sizes
        return tf.reduce_sum(terms * targets.probabilities[..., tf.newaxis, :], [-2, -1])


def make(config: ActionValueSettings) -> Distribution:
    """Return the kind that --value_distribution names."""
    if config.value_distribution == "categorical":
        return Categorical(config.num_atoms, config.v_min, config.v_max)
    if config.value_distribution == "quantiles":
        return Quantiles(config.huber_delta)
    return Expected(config.huber_delta)


def project(outcomes: Outcomes, atoms: tf.Tensor) -> tf.Tensor:
    """Return the probabilities [..., N] of evenly spaced atoms [N] nearest to distributions.

    Each outcome's probability is divided between the two atoms next to it in proportion to its
    closeness to them, which keeps the mean. Outcomes beyond the atoms count as the outermost ones.
    """
    least, most = atoms[0], atoms[-1]
    step = (most - least) / tf.cast(tf.size(atoms) - 1, atoms.dtype)
    places = (tf.clip_by_value(outcomes.values, least, most) - least) / step  # [..., M]
    numbers = tf.range(tf.size(atoms), dtype=tf.int32)
    apart = tf.abs(places[..., tf.newaxis, :] - tf.cast(numbers, atoms.dtype)[:, tf.newaxis])
    shares = tf.nn.relu(1.0 - apart)  # [..., N, M]
    return tf.reduce_sum(shares * outcomes.probabilities[..., tf.newaxis, :], -1)
