"""Q-learning with uniform replay in its own source: --algorithm=tests.helpers.replaying.

Environment variables vary it, since this helper has no flags of its own. REPLAY_ALONE: the number
of unrolls in the replay from which the source no longer waits for new ones; 0 fills the replay with
made-up unrolls, so that no actors are needed.
"""

import os

import numpy as np
import tensorflow as tf

from impala_mm.data import batches
from tests.helpers.dqn_like import DQNLike

CAPACITY = 64  # unrolls
_ADDED = "added.npy"


def make(config, environment):
    return Replaying(config, environment)


class Replaying(DQNLike):
    def __init__(self, config, environment):
        super().__init__(config, environment)
        self._batch_size = config.batch_size
        # The last key of this learner's source that was trained on; it differs between learners.
        self.last_key = tf.Variable(-1, dtype=tf.int64, trainable=False, name="last_key")
        self.variables = self.variables._replace(local=[self.last_key])

    def source(self, fresh):
        alone = int(os.environ.get("REPLAY_ALONE", "1000000000"))
        return UniformReplay(fresh, self.unroll, self._batch_size, alone)

    def update(self, batch, context, exchange):
        self.last_key.assign(tf.maximum(self.last_key, tf.reduce_max(batch.key)))
        return super().update(batch, context, exchange)


class UniformReplay:
    """A source of batches that are half new unrolls and half replayed ones.

    Its keys count the unrolls since the run began.
    """

    def __init__(self, fresh, unroll, size, alone=10**9):
        self._fresh, self._size, self._alone = fresh, size, alone
        self.held, self.added = batches.zeros(unroll, CAPACITY), 0
        if alone == 0:
            self.held.weight[:] = 1
            self.added = CAPACITY
        self._random = np.random.default_rng()
        self.priorities = {}

    def next(self, timeout):
        if self.added >= self._alone:
            return batches.join([self._draw(), self._draw()])
        batch = self._fresh.next(timeout)
        if batch is None:
            return None
        new = batches.to_numpy(batch)
        new = new._replace(key=np.arange(self.added, self.added + self._size))
        batches.assign(self.held, new.key % CAPACITY, new)
        self.added += self._size
        return batches.join([new, self._draw()])

    def _draw(self):
        drawn = self._random.integers(0, min(self.added, CAPACITY), self._size)
        return batches.replayed(batches.columns(self.held, drawn))

    def feedback(self, keys, priorities):
        self.priorities |= dict(
            zip(keys.numpy().tolist(), priorities.numpy().tolist(), strict=True)
        )

    def save(self, folder):
        batches.save(self.held, folder)
        np.save(folder / _ADDED, self.added)

    def restore(self, folder):
        batches.restore(self.held, folder)
        self.added = int(np.load(folder / _ADDED))
