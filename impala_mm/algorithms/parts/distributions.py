"""Distributions over actions, made from a network's outputs.

Actors sample from them; the loss uses their log-probabilities and entropy. A distribution's
parameters have leading axes [...], and its methods return tensors with the same leading axes.
`normals` holds those over numbers, and `policies.choose` finds the one for an action space.
"""

import dataclasses
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.parts import masking


class Distribution(Protocol):
    """A distribution over actions for each element of the leading axes."""

    def sample(self) -> Any:
        """Draw one action from each distribution."""

    def mode(self) -> Any:
        """Return the action that a greedy policy takes."""

    def log_prob(self, actions: Any) -> tf.Tensor:
        """Return the log-probabilities [...] of actions; of their densities for numbers."""

    def entropy(self) -> tf.Tensor:
        """Return the entropies [...] in nats; of the densities for numbers."""

    def kl(self, other: Any) -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`, of the same class."""


@dataclasses.dataclass(frozen=True, eq=False)
class Categorical:
    """A distribution over A actions with the probabilities softmax(logits).

    An action with a logit of -inf is never chosen; the entropy and all gradients stay finite.
    """

    logits: tf.Tensor  # float [..., A]

    def sample(self) -> tf.Tensor:
        """Draw one action from each distribution, int32 [...]."""
        rows = tf.reshape(self.logits, [-1, tf.shape(self.logits)[-1]])
        drawn = tf.random.categorical(rows, num_samples=1, dtype=tf.int32)
        drawn = tf.reshape(drawn, tf.shape(self.logits)[:-1])
        return tf.ensure_shape(drawn, self.logits.shape[:-1])

    def mode(self) -> tf.Tensor:
        """Return the most likely action, int32 [...]; the first one if several are equal."""
        return tf.argmax(self.logits, axis=-1, output_type=tf.int32)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities [...] of `actions`, int [...]."""
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=self.logits)

    def entropy(self) -> tf.Tensor:
        """Return the entropies [...] in nats."""
        probs = tf.nn.softmax(self.logits)
        # An impossible action adds 0; without the mask 0 x log 0 would add NaN.
        log_probs = tf.where(probs > 0, tf.nn.log_softmax(self.logits), 0.0)
        return -tf.reduce_sum(probs * log_probs, axis=-1)

    def kl(self, other: "Categorical") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`."""
        probs = tf.nn.softmax(self.logits)
        ratios = tf.nn.log_softmax(self.logits) - tf.nn.log_softmax(other.logits)
        return tf.reduce_sum(probs * tf.where(probs > 0, ratios, 0.0), axis=-1)

    def mean(self, x: tf.Tensor) -> tf.Tensor:
        """Return the means [...] of what belongs to each action, [..., A]."""
        probs = tf.nn.softmax(self.logits)
        return tf.reduce_sum(tf.where(probs > 0, probs * x, 0.0), axis=-1)


class MultiCategorical:
    """A distribution over K independent choices, each among a number of its own."""

    def __init__(self, logits: tf.Tensor, n: tuple[int, ...], mask: Any = ()):
        """Take the logits [..., sum(n)] of the K choices, one after the other.

        `mask`, bool [..., sum(n)] or (), is false for what is forbidden (see `masking`).
        """
        self._n = n
        each = _apart(logits, n, -np.inf)
        if not isinstance(mask, tuple):
            each = masking.allowed_only(each, _apart(mask, n, False))
        self._each = Categorical(each)  # [..., K, most]

    def sample(self) -> tf.Tensor:
        """Draw one action from each distribution, int32 [..., K]."""
        return self._each.sample()

    def mode(self) -> tf.Tensor:
        """Return the most likely action, int32 [..., K]."""
        return self._each.mode()

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities [...] of `actions`, int [..., K]."""
        return tf.reduce_sum(self._each.log_prob(actions), -1)

    def entropy(self) -> tf.Tensor:
        """Return the entropies [...] in nats."""
        return tf.reduce_sum(self._each.entropy(), -1)

    def kl(self, other: "MultiCategorical") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`."""
        return tf.reduce_sum(self._each.kl(other._each), -1)

    def mean(self, x: tf.Tensor) -> tf.Tensor:
        """Return the sums over the K choices of the means of x, [..., sum(n)]: [...]."""
        return tf.reduce_sum(self._each.mean(_apart(x, self._n, 0)), -1)


@dataclasses.dataclass(frozen=True, eq=False)
class Bernoulli:
    """A distribution over K independent decisions, which are 1 with probability sigmoid(logits)."""

    logits: tf.Tensor  # float [..., K]

    def sample(self) -> tf.Tensor:
        """Draw one action from each distribution, int32 [..., K]."""
        drawn = tf.random.uniform(tf.shape(self.logits), dtype=self.logits.dtype)
        return tf.cast(drawn < tf.sigmoid(self.logits), tf.int32)

    def mode(self) -> tf.Tensor:
        """Return the most likely action, int32 [..., K]; 0 where both are equal."""
        return tf.cast(self.logits > 0, tf.int32)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities [...] of `actions`, int [..., K]."""
        each = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(actions, self.logits.dtype), logits=self.logits
        )
        return -tf.reduce_sum(each, -1)

    def entropy(self) -> tf.Tensor:
        """Return the entropies [...] in nats."""
        # The cross entropy of the distribution with itself.
        each = tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(self.logits), self.logits)
        return tf.reduce_sum(each, -1)

    def kl(self, other: "Bernoulli") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`."""
        probs = tf.sigmoid(self.logits)
        cross = tf.nn.sigmoid_cross_entropy_with_logits(probs, other.logits)
        own = tf.nn.sigmoid_cross_entropy_with_logits(probs, self.logits)
        return tf.reduce_sum(cross - own, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class Shaped:
    """A distribution over arrays of a shape, made of one over vectors."""

    flat: Distribution
    shape: tuple[int, ...]

    def sample(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Draw one action from each distribution, [..., *shape].

        Of numbers, `noise` is what `Normal.sample` makes the action of.
        """
        given = () if noise is None else (noise,)
        return self._shaped(self.flat.sample(*given))

    def mode(self) -> tf.Tensor:
        """Return the action that a greedy policy takes, [..., *shape]."""
        return self._shaped(self.flat.mode())

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities [...] of `actions`, [..., *shape]."""
        leading = _sizes(actions)[: actions.shape.rank - len(self.shape)]
        return self.flat.log_prob(tf.reshape(actions, [*leading, int(np.prod(self.shape))]))

    def entropy(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Return the entropies [...]; of numbers, `noise` may make one sample (`TanhNormal`)."""
        given = () if noise is None else (noise,)
        return self.flat.entropy(*given)

    def kl(self, other: "Shaped") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`."""
        return self.flat.kl(other.flat)

    def mean(self, x: tf.Tensor) -> tf.Tensor:
        """Return the means [...] of what belongs to each choice (see `MultiCategorical`)."""
        return self.flat.mean(x)  # type: ignore[attr-defined]

    def _shaped(self, vectors: tf.Tensor) -> tf.Tensor:
        return tf.reshape(vectors, [*_sizes(vectors)[:-1], *self.shape])


class Joint:
    """A distribution over nests of independent parts."""

    def __init__(self, parts: Any):
        """Join `parts`, a nest of distributions with the same leading axes."""
        self._structure, self._parts = parts, tf.nest.flatten(parts)

    def sample(self, noise: Any = None) -> Any:
        """Draw one action from each distribution: nest of [..., *shape].

        Of numbers, `noise` is a nest of what `Normal.sample` makes the actions of.
        """
        if noise is None:
            return self._pack([part.sample() for part in self._parts])
        each = zip(self._parts, tf.nest.flatten(noise), strict=True)
        return self._pack([part.sample(numbers) for part, numbers in each])

    def mode(self) -> Any:
        """Return the action that a greedy policy takes: nest of [..., *shape]."""
        return self._pack([part.mode() for part in self._parts])

    def log_prob(self, actions: Any) -> tf.Tensor:
        """Return the log-probabilities [...] of `actions`, a nest of [..., *shape]."""
        each = zip(self._parts, tf.nest.flatten(actions), strict=True)
        return tf.add_n([part.log_prob(action) for part, action in each])

    def entropy(self, noise: Any = None) -> tf.Tensor:
        """Return the entropies [...]; of numbers, `noise` may make one sample (`TanhNormal`)."""
        if noise is None:
            return tf.add_n([part.entropy() for part in self._parts])
        each = zip(self._parts, tf.nest.flatten(noise), strict=True)
        return tf.add_n([part.entropy(numbers) for part, numbers in each])

    def kl(self, other: "Joint") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`."""
        each = zip(self._parts, other._parts, strict=True)
        return tf.add_n([part.kl(theirs) for part, theirs in each])

    def _pack(self, flat: list[tf.Tensor]) -> Any:
        return tf.nest.pack_sequence_as(self._structure, flat)


def vectors(policy: Distribution) -> list[Any]:
    """Return the distributions over scalars or vectors that a policy consists of."""
    if isinstance(policy, Joint):
        return [each for part in policy._parts for each in vectors(part)]
    return [policy.flat] if isinstance(policy, Shaped) else [policy]


def _apart(x: tf.Tensor, n: tuple[int, ...], impossible: Any) -> tf.Tensor:
    """Return [..., sum(n)] as [..., K, most]; choices with fewer options get impossible ones."""
    most, begins = max(n), np.cumsum([0, *n[:-1]])
    if min(n) == most:
        return tf.reshape(x, [*_sizes(x)[:-1], len(n), most])
    filled = tf.fill([*_sizes(x)[:-1], 1], tf.constant(impossible, x.dtype))
    options = np.arange(most)
    index = np.where(options < np.array(n)[:, None], begins[:, None] + options, sum(n))
    return tf.gather(tf.concat([x, filled], -1), index, axis=-1)


def _sizes(x: tf.Tensor) -> list[Any]:
    """Return the sizes of the axes, as numbers where they are known, so that shapes stay static."""
    dynamic = tf.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
