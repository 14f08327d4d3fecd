"""Distributions over actions, made from a network's outputs.

Actors sample from them; the loss uses their log-probabilities and entropy.
"""

import dataclasses

import tensorflow as tf


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
