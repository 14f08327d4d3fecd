"""Random inputs of networks, for tests."""

import numpy as np
import pytest
import tensorflow as tf

import nets

ACTIONS = 4
SMALL = tf.TensorSpec([36, 40, 2], tf.uint8)  # the smallest height that every network accepts


VECTOR = tf.TensorSpec([5], tf.float32)


# A GTrXL takes seconds, and does not know which torso it follows.
NAMES = [
    pytest.param(name, marks=pytest.mark.slow)
    if name.endswith("GTrXLAgent") and not name.startswith("MLP")
    else name
    for name in nets.NETWORKS.names
]


def spec_for(name):
    return VECTOR if name.startswith("MLP") else SMALL


def entries(spec, T, B, seed=0):
    """Return random (observation, reward, action) [T, B, ...], and `first` without resets."""
    random = np.random.default_rng(seed)
    shape = [T, B, *spec.shape]
    if spec.dtype == tf.uint8:
        observation = random.integers(0, 256, shape, np.uint8)
    else:
        observation = random.standard_normal(shape, np.float32)
    reward = random.choice(np.float32([-1, 0.5, 1]), [T, B])
    action = random.integers(0, ACTIONS, [T, B], np.int32)
    return observation, reward, action, np.zeros([T, B], bool)


def traced_unroll(network, spec):
    """Return the unroll as a graph function that fixes neither length nor batch."""
    state = network.initial_state(1)
    signature = [
        tf.TensorSpec([None, None, *spec.shape], spec.dtype),
        *(tf.TensorSpec([None, None], dtype) for dtype in (tf.float32, tf.int32, tf.bool)),
        tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]]), state),
    ]
    return tf.function(network.unroll, input_signature=signature, autograph=False)
