"""What a policy is made of: a network's outputs read as a distribution over actions.

Actors sample from it, losses.py asks it for log-probabilities and entropy.
"""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class Categorical:
    """One of A actions, with probabilities softmax(logits).

    A logit of -inf forbids its action: the entropy and all gradients stay finite.
    """

    logits: tf.Tensor  # float [..., A]

    def sample(self) -> tf.Tensor:
        """int32 [...]: one draw each."""
        rows = tf.reshape(self.logits, [-1, tf.shape(self.logits)[-1]])
        drawn = tf.random.categorical(rows, num_samples=1, dtype=tf.int32)
        drawn = tf.reshape(drawn, tf.shape(self.logits)[:-1])
        return tf.ensure_shape(drawn, self.logits.shape[:-1])

    def mode(self) -> tf.Tensor:
        """int32 [...]: the likeliest action, the first of equals."""
        return tf.argmax(self.logits, axis=-1, output_type=tf.int32)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """[...]: of `actions`, int [...]."""
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=self.logits)

    def entropy(self) -> tf.Tensor:
        """[...]: in nats."""
        probs = tf.nn.softmax(self.logits)
        # An impossible action adds nothing, where 0 x log 0 would be NaN.
        log_probs = tf.where(probs > 0, tf.nn.log_softmax(self.logits), 0.0)
        return -tf.reduce_sum(probs * log_probs, axis=-1)
