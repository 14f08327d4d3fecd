"""Frame stacks: which frames, in which order, and none of the previous episode."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import nets
from nets.frame_stack import FrameStack


def by_hand(frames, first, n):
    """Return stacks [T, B, ...]: each entry's n newest frames of its episode, or zeros."""
    T, B = first.shape
    stacks = np.zeros([T, B, *frames.shape[2:-1], n * frames.shape[-1]], frames.dtype)
    C = frames.shape[-1]
    for b in range(B):
        seen = []
        for t in range(T):
            seen = [frames[t, b]] if first[t, b] else [*seen, frames[t, b]]
            for back, frame in enumerate(seen[: -n - 1 : -1]):
                place = (n - 1 - back) * C
                stacks[t, b, ..., place : place + C] = frame
    return stacks


@settings(max_examples=30, deadline=None)
@given(
    T=st.integers(1, 12),
    B=st.integers(1, 3),
    n=st.integers(2, 5),
    shape=st.sampled_from([(3, 2, 1), (2, 2, 3), (4,)]),
    cut=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_every_entry_sees_the_newest_frames_of_its_own_episode(T, B, n, shape, cut, seed):
    """Compare one unroll with two, of which the second starts from the state of the first."""
    random = np.random.default_rng(seed)
    frames = random.integers(1, 256, [T, B, *shape]).astype(np.uint8)
    first = random.random([T, B]) < 0.25
    stack = FrameStack(n, tf.TensorSpec(shape, tf.uint8))
    expected = by_hand(frames, first, n)
    whole, last = stack.unroll(tf.constant(frames), tf.constant(first), stack.initial_state(B))
    np.testing.assert_array_equal(whole, expected)
    cut = min(cut, T)
    state, parts = stack.initial_state(B), []
    for part in (slice(0, cut), slice(cut, T)):
        if len(first[part]):
            stacked, state = stack.unroll(
                tf.constant(frames[part]), tf.constant(first[part]), state
            )
            parts.append(stacked.numpy())
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    np.testing.assert_array_equal(state, last)


@pytest.mark.parametrize(("C", "n"), [(1, 4), (3, 2)])
def test_a_network_of_single_frames_is_the_one_of_stacks(C, n):
    """Steps and unrolls give the same features as stacks that the test makes itself."""
    T, B, A, name = 6, 2, 3, "ShallowConvLSTMAgent"
    single = tf.TensorSpec([36, 36, C], tf.uint8)
    network = nets.make(name, single, A, frame_stack=n)
    plain = nets.make(name, tf.TensorSpec([36, 36, n * C], tf.uint8), A)
    for mine, theirs in zip(plain.trainable_variables, network.trainable_variables, strict=True):
        value = theirs
        if mine.shape == (2, 2, 16 * n * C, 16):  # of tiles: frame by frame there, by pixels here
            by_frame = tf.reshape(theirs, [2, 2, n, 16, C, 16])
            value = tf.reshape(tf.transpose(by_frame, [0, 1, 3, 2, 4, 5]), mine.shape)
        mine.assign(value)
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, [T, B, 36, 36, C]).astype(np.uint8)
    first = np.zeros([T, B], bool)
    first[0], first[3, 1] = True, True
    rest = (
        random.standard_normal([T, B]).astype(np.float32),
        random.integers(0, A, [T, B], np.int32),
    )
    features, last = network.unroll(frames, *rest, first, network.initial_state(B))
    expected, _ = plain.unroll(by_hand(frames, first, n), *rest, first, plain.initial_state(B))
    np.testing.assert_allclose(features, expected, atol=1e-5)
    state = network.initial_state(B)
    for t in range(T):
        step, state = network.step(frames[t], *(x[t] for x in (*rest, first)), state)
        np.testing.assert_allclose(step, features[t], atol=1e-5)
    tf.nest.map_structure(np.testing.assert_array_equal, state.frames, last.frames)


@pytest.mark.parametrize("separate", [False, True])
def test_the_state_after_earlier_frames_is_the_one_of_an_unroll_but_for_the_memory(separate):
    image = tf.TensorSpec([36, 36, 1], tf.uint8)
    network = nets.make("ShallowConvLSTMAgent", image, 3, frame_stack=4)
    if separate:
        network = nets.Separate(network, nets.make("ShallowConvLSTMAgent", image, 3, frame_stack=4))
    random, first = np.random.default_rng(0), np.zeros([3, 4], bool)
    first[1, 1] = first[2, 2] = True
    frames = random.integers(0, 256, [3, 4, 36, 36, 1]).astype(np.uint8)
    rest = np.zeros([3, 4], np.float32), np.zeros([3, 4], np.int32), first
    _, expected = network.unroll(frames, *rest, network.initial_state(4))
    found = network.state_after(tf.constant(frames), tf.constant(first))
    tf.nest.map_structure(np.testing.assert_array_equal, found.frames, expected.frames)
    assert found.frames.image.numpy().any()
    assert not any(leaf.numpy().any() for leaf in tf.nest.flatten(found.core))
