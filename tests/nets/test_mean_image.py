"""Networks that subtract a mean image, compared with their torsos on images that NumPy prepares."""

import numpy as np
import pytest
import tensorflow as tf

import nets

ACTIONS, T, B = 3, 3, 2
SPEC = tf.TensorSpec([36, 40, 1], tf.uint8)


def _entries(spec, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (T, B, *spec.shape)).astype(np.uint8)
    zeros = np.zeros((T, B), np.float32)
    return images, zeros, zeros.astype(np.int32), zeros > 0


def _prepared(stacks, mean):
    """Return stacks [N, H, W, C] minus the mean image, over the root of their mean square."""
    difference = np.float64(stacks) - mean
    square = (difference**2).mean((1, 2, 3), keepdims=True)
    return (difference / np.sqrt(square + 1)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "frames"), [("ShallowConvAgent", 4), ("ResNetLSTMAgent", 1), ("MLPAgent", 4)]
)
def test_what_the_torso_reads_is_each_image_minus_the_mean(name, frames):
    mean = tf.Variable(np.random.default_rng(5).uniform(0, 255, SPEC.shape), dtype=tf.float32)
    network = nets.make(name, SPEC, ACTIONS, frames, mean=mean)
    images, reward, action, first = _entries(SPEC)
    state = network.initial_state(B)
    read = []
    torso = network._torso
    network._torso = _Recording(torso, read)
    features, _ = network.unroll(images, reward, action, first, state)
    known = np.concatenate([np.zeros((frames - 1, *images.shape[1:]), np.uint8), images])
    stacks = np.stack(
        [np.concatenate(list(known[t : t + frames]), -1) for t in range(T)]
    )  # [T, B, H, W, frames]
    expected = _prepared(stacks.reshape(T * B, *SPEC.shape[:2], frames), np.asarray(mean))
    arranged = [torso.arrange(tf.constant(expected[..., i : i + 1])) for i in range(frames)]
    np.testing.assert_allclose(read[0], tf.concat(arranged, -1), rtol=1e-4, atol=1e-4)

    each = []
    for t in range(T):
        one, state = network.step(images[t], reward[t], action[t], first[t], state)
        each.append(one)
    np.testing.assert_allclose(tf.stack(each), features, rtol=1e-3, atol=1e-4)


class _Recording:
    """A torso that keeps what it reads."""

    def __init__(self, torso, read):
        self._torso, self._read = torso, read
        self.arrange = torso.arrange

    def __call__(self, seen):
        self._read.append(seen)
        return self._torso(seen)


def test_of_a_nest_only_the_images_have_a_mean():
    spec = {
        "map": SPEC,
        "near": tf.TensorSpec([2], tf.float32),
        "touch": tf.TensorSpec([3], "uint8"),
    }
    zeros = tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape), spec)
    images, *rest = _entries(SPEC)
    seen = {"map": images, "near": np.ones((T, B, 2), "f"), "touch": np.ones((T, B, 3), np.uint8)}
    mean = tf.Variable(tf.zeros(SPEC.shape))
    network = nets.make("auto", spec, ACTIONS, mean=zeros | {"map": mean})
    before, _ = network.unroll(seen, *rest, network.initial_state(B))
    mean.assign_add(tf.fill(SPEC.shape, 100.0))
    after, _ = network.unroll(seen, *rest, network.initial_state(B))
    assert np.abs(before - after).max() > 0.01
