"""Networks that read nests: images by a torso each, all other parts by an MLP."""

import numpy as np
import pytest
import tensorflow as tf
from network_inputs import ACTIONS

import nets

NEST = {
    "view": tf.TensorSpec([40, 40, 3], tf.uint8),
    "rear": tf.TensorSpec([36, 36, 1], tf.float32),
    "place": (tf.TensorSpec([5], tf.float32), tf.TensorSpec([], tf.float32)),
    "small": tf.TensorSpec([7, 7, 3], tf.uint8),
}


def _entries(T, B, seed=0):
    random = np.random.default_rng(seed)

    def drawn(spec):
        shape = [T, B, *spec.shape]
        if spec.dtype == tf.uint8:
            return random.integers(0, 256, shape, np.uint8)
        return random.standard_normal(shape, np.float32)

    observation = tf.nest.map_structure(drawn, NEST)
    first = np.zeros([T, B], bool)
    first[2, 1] = True
    action = random.integers(0, ACTIONS, [T, B], np.int32)
    return observation, np.ones([T, B], np.float32), action, first


@pytest.mark.parametrize("name", ["ShallowConvLSTMAgent", "MLPAgent"])
def test_an_unroll_of_nests_is_its_steps_one_by_one(name):
    network = nets.make(name, NEST, ACTIONS)
    observation, *rest = _entries(4, 2)
    state = network.initial_state(2)
    features, _ = network.unroll(observation, *rest, state)
    assert features.shape == (4, 2, network.num_features)
    for t in range(4):
        seen = tf.nest.map_structure(lambda x, t=t: x[t], observation)
        step, state = network.step(seen, *(x[t] for x in rest), state)
        np.testing.assert_allclose(step, features[t], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["view", "rear", "place", "small"])
def test_every_part_is_read(part):
    network = nets.make("auto", NEST, ACTIONS)
    observation, *rest = _entries(3, 2)
    other = observation | {part: _entries(3, 2, seed=1)[0][part]}
    one, another = (
        network.unroll(seen, *rest, network.initial_state(2))[0] for seen in (observation, other)
    )
    assert np.abs(one - another).max() > 1e-3


def test_each_image_has_its_own_torso_and_all_variables_learn():
    network = nets.make("auto", NEST, ACTIONS)
    convolutions = [v for v in network.trainable_variables if v.shape.rank == 4]
    assert len(convolutions) == 2 * 2, "two images of two layers; one image is too small"
    with tf.GradientTape() as tape:
        features, _ = network.unroll(*_entries(3, 2), network.initial_state(2))
        loss = tf.reduce_sum(features**2)
    assert all(g is not None for g in tape.gradient(loss, network.trainable_variables))


def test_auto_reads_a_nest_by_its_largest_image():
    vectors = {"a": tf.TensorSpec([3], tf.float32), "b": tf.TensorSpec([2, 9, 3], tf.uint8)}
    small = {"a": tf.TensorSpec([3], tf.float32), "b": tf.TensorSpec([7, 7, 3], tf.uint8)}
    assert nets.auto(vectors) == "MLPAgent"
    assert nets.auto(small) == "SmallConvAgent"
    assert nets.auto(NEST) == "ShallowConvAgent"
    with pytest.raises(nets.Unsuitable, match=r"\[\[3\], \[2, 9, 3\]\]: it reads images"):
        nets.make("ShallowConvAgent", vectors, ACTIONS)
