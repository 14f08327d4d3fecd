"""The networks, by name."""

import numpy as np
import tensorflow as tf

import nets


def test_mlp_turns_observations_of_any_shape_into_features_one_by_one():
    network = nets.make("MLPAgent")
    observations = tf.random.stateless_normal([5, 2, 3], seed=[0, 1])
    features = network.torso(observations)
    assert features.shape == (5, 64)
    alone = network.torso(observations[2:3])
    np.testing.assert_allclose(alone[0], features[2], rtol=1e-5, atol=1e-6)
