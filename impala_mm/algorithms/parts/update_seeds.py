"""Seeds of the random numbers that an update draws.

They depend on the run's seed and the number of the update, so that a resumed run draws what the run
would have drawn, and all learners can draw the same.
"""

import tensorflow as tf

# Uses beside those of `q_draws`, which are smaller.
GOALS, NOISE, CRITICS, SHIFTS = 100_000, 100_001, 100_002, 100_004
DROPOUT = 100_010  # and the two after it
_MOST, _APART = 2**31 - 1, 1_000_003  # largest seed, and between two runs' seeds


def of_update(run_seed: int, update: tf.Tensor, use: int) -> tf.Tensor:
    """Return the seed, int64 [2], for a stateless draw; `use` tells an update's draws apart."""
    return tf.stack([tf.constant((run_seed * _APART + use) % _MOST, tf.int64), update])
