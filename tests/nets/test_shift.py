"""Shifted images: what a network reads of them, with the frames of its stack."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from network_inputs import ACTIONS

import nets
from nets import agents, network
from nets.frame_stack import shift
from nets.torsos import MLP, ResNet

T, B, MOST = 3, 4, 4


def _shifted(image, down, right):
    """Return an image [H, W, C] moved by some pixels, with its border repeated."""
    padded = np.pad(image, [(MOST, MOST), (MOST, MOST), (0, 0)], "edge")
    height, width = image.shape[:2]
    return padded[MOST - down :, MOST - right :][:height, :width]


@given(
    size=st.tuples(st.integers(5, 12), st.integers(5, 12), st.integers(1, 3)),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.uint8, np.float32]),
)
@settings(max_examples=20, deadline=None)
def test_each_column_is_shifted_by_its_offset(size, seed, dtype):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, [T, B, *size]).astype(dtype)
    offsets = random.integers(-MOST, MOST + 1, [B, 2]).astype(np.int32)
    found = shift(tf.constant(images), tf.constant(offsets), MOST)
    assert found.dtype == dtype
    for t in range(T):
        for b in range(B):
            np.testing.assert_array_equal(found[t, b], _shifted(images[t, b], *offsets[b]))


@pytest.mark.parametrize(("size", "channels"), [((84, 84), 1), ((39, 42), 3)])
@pytest.mark.parametrize(
    "torso",
    [agents.simple(nets.Style())[0], agents.small(nets.Style())[0], ResNet(), MLP()],
    ids=lambda x: x.name,
)
def test_a_torso_restores_what_it_has_arranged(torso, size, channels):
    images = np.random.default_rng(0).integers(0, 256, [2, *size, channels], np.uint8)
    found = torso.restore(torso.arrange(tf.constant(images))).numpy()
    height, width = found.shape[1:3]
    assert height > size[0] - 4
    assert width > size[1] - 4
    np.testing.assert_array_equal(found, images[:, :height, :width])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_stack_is_read_as_if_all_its_frames_had_been_shifted(compiled):
    spec = tf.TensorSpec([44, 44, 1], tf.uint8)
    made = nets.make("SimpleConvNetAgent", spec, ACTIONS, frame_stack=4)
    random = np.random.default_rng(1)
    frames = random.integers(0, 256, [T + 3, B, 44, 44, 1], np.uint8)
    offsets = np.array([[4, -4], [0, 0], [-1, 3], [2, 2]], np.int32)
    moved = np.stack(
        [[_shifted(frame, *offset) for frame, offset in zip(row, offsets, strict=True)]
         for row in frames]
    )  # fmt: skip
    never, nothing = np.zeros([T + 3, B], bool), np.zeros([T + 3, B])
    never[0] = True

    def read(observations, state, begin, end):
        part = slice(begin, end)
        return made.unroll(
            observations, tf.constant(nothing[part], tf.float32),
            tf.constant(nothing[part], tf.int32), tf.constant(never[part]), state,
        )  # fmt: skip

    _, before = read(tf.constant(frames[:3]), made.initial_state(B), 0, 3)
    assert isinstance(before.frames, network.Picture)

    @tf.function(autograph=False, jit_compile=compiled)
    def shifted(observations, state):
        return made.shift_images(observations, state, tf.constant(offsets), MOST)

    observations, state = shifted(tf.constant(frames[3:]), before)
    found, _ = read(observations, state, 3, T + 3)
    expected, _ = read(tf.constant(moved), made.initial_state(B), 0, T + 3)
    np.testing.assert_allclose(found, expected[3:], atol=1e-4)
    plain, _ = read(tf.constant(frames[3:]), before, 3, T + 3)
    assert np.abs(plain - found).max() > 0.1


def test_only_the_images_of_a_nest_are_shifted():
    nest = {"place": tf.TensorSpec([3], tf.float32), "view": tf.TensorSpec([9, 9, 1], tf.uint8)}
    made = nets.make("SmallConvAgent", nest, ACTIONS)
    random = np.random.default_rng(2)
    given_ = {
        "place": random.normal(size=[T, B, 3]).astype(np.float32),
        "view": random.integers(0, 256, [T, B, 9, 9, 1], np.uint8),
    }
    offsets, state = tf.fill([B, 2], 1), made.initial_state(B)
    moved, after = made.shift_images(given_, state, offsets, 1)
    np.testing.assert_array_equal(moved["place"], given_["place"])
    np.testing.assert_array_equal(moved["view"][:, :, 1:, 1:], given_["view"][:, :, :-1, :-1])
    assert after == state
